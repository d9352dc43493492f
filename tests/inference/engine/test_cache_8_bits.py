"""Keys and values in 8 bits: half the memory, nearly the same attention, and the same answer however it is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.inference import mtp
from tests.inference.engine.conftest import MakeModel, generated, prompts
from tests.inference.engine.test_adapters import save_adapter
from tests.inference.engine.test_engine import WAYS

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.attention import fetch_anywhere, prefill_anywhere, rows_anywhere
from npukit.inference.engine.cache import CacheShape, cache_dtype
from npukit.inference.engine.paged import PagedCall, PagedRows, Prefill
from npukit.inference.engine.sizes import blocks_that_fit
from npukit.llm.models.checkpoint import open_checkpoint
from npukit.llm.models.next_tokens import load_next_token_layer

GREEDY = SamplingParams(temperature=0, max_tokens=12)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name, error", [("int8", 0.02), ("fp8", 0.06)])
def test_attention_is_nearly_that_of_the_full_cache(name: str, error: float) -> None:
    torch.manual_seed(0)
    lengths = torch.tensor([1, 40, 300, 1000])  # of very different sequences
    borders = [0, *lengths.cumsum(0).tolist()]
    tables = (torch.randperm(4 * 63) + 1).view(4, 63).int()
    slots = torch.cat([tables[row, torch.arange(n) // 16] * 16 + torch.arange(n) % 16 for row, n in enumerate(lengths)])
    new = tuple(lengths.tolist())
    prompts_ = Prefill(slots.long(), torch.tensor(borders), torch.tensor(borders), (0, 1, 2, 3), new, new)
    tokens = torch.randn(3, len(slots), 2, 64) * torch.tensor([0.01, 1.0])[:, None]  # heads of different sizes
    query = torch.randn(len(slots), 4, 64)
    results = []
    for dtype in (torch.float32, cache_dtype(name, torch.float32, CPU)):
        caches = [torch.full((4 * 63 + 1, 16, 2, 64), float("nan")).to(dtype) for _ in range(2)]
        call = PagedCall(query, tokens[1], tokens[2], caches[0], caches[1], slots.long(), 0.125, None)
        if dtype.itemsize == 1:
            scales = [torch.full((4 * 63 + 1, 16, 2), float("nan")) for _ in range(2)]
            call = call._replace(key_scales=scales[0], value_scales=scales[1])
        whole = prefill_anywhere(query, *fetch_anywhere(call, prompts_), prompts_, 0.125, None)
        ends = lengths.cumsum(0) - 1
        last = call._replace(query=query[ends], key=tokens[1, ends], value=tokens[2, ends], slots=slots[ends].long())
        decoded = rows_anywhere(last, PagedRows(torch.arange(4), tables, lengths, None))
        torch.testing.assert_close(decoded, whole[ends])
        results.append(whole.view(-1, 2, 2, 64))
    exact, small = results
    for head in range(2):
        assert (small[:, head] - exact[:, head]).norm() < error * exact[:, head].norm()


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_answers_are_the_same_however_they_are_computed(name: str, make_model: MakeModel) -> None:
    requests = [Request(prompt, GREEDY) for prompt in prompts(6)]
    expected: list[list[int]] = []
    for way, options in WAYS.items():
        engine = Engine(make_model("qwen2"), options.model_copy(update={"kv_cache_dtype": name}))
        answers = [answer.ids for answer in engine.generate(requests)]
        expected = expected or answers
        assert answers == expected, way
    if name == "int8":  # of a model with random weights
        exact = [generated(make_model("qwen2"), request.prompt, 12) for request in requests]
        assert sum(own == other for own, other in zip(expected, exact, strict=True)) >= 5


def test_with_a_reused_prefix_and_adapters(make_model: MakeModel, tmp_path: Path) -> None:
    wanted = save_adapter("llama", tmp_path / "one", make_model, 4, rslora=False)
    engine = Engine(make_model("llama"), EngineOptions(max_num_seqs=4, kv_cache_dtype="int8"))
    engine.load_adapter("one", tmp_path / "one")
    short = replace(GREEDY, max_tokens=8)
    for _ in range(2):
        answers = engine.generate([Request(prompt, short, adapter="one") for prompt in prompts(3)])
        assert [answer.ids for answer in answers] == wanted
    assert engine.stats().cached_tokens


def test_a_token_takes_half_the_memory(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npukit.inference.engine.sizes._free", lambda *_: 2**30)
    full = CacheShape(layers=28, heads=4, head_size=128, dtype=torch.bfloat16)
    small = replace(full, dtype=torch.int8)
    fitting = [blocks_that_fit(shape, 16, 256, 32768, 0.9, CPU) for shape in (full, small)]
    assert 1.9 < fitting[1] / fitting[0] < 2
    model = make_model("qwen2")
    engine = Engine(model, EngineOptions(max_num_seqs=2, num_blocks=9, kv_cache_dtype="int8"))
    layers = [layer.self_attn for layer in model.model.layers]
    held = [
        getattr(layer, f"{kind}_{part}")
        for layer in layers
        for kind in ("key", "value")
        for part in ("cache", "scales")
    ]
    assert sum(tensor.nbytes for tensor in held) == 9 * 16 * CacheShape.of(model, torch.int8).bytes_per_token
    engine.sleep(keep_cache=False)
    assert not any(hasattr(layer, "key_scales") for layer in layers)


def test_a_cache_of_transformers_own_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(NpukitError, match="gemma2 models cannot be in 8 bits"):
        Engine(make_model("gemma2"), EngineOptions(max_num_seqs=2, kv_cache_dtype="int8"))


def test_with_a_layer_that_drafts(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = mtp.save("glm4_moe", tmp_path / "model")
    answers = []
    for is_drafting in (False, True):
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        layer = load_next_token_layer(model, open_checkpoint(folder)) if is_drafting else None
        engine = Engine(model, EngineOptions(max_num_seqs=3, paged=True, kv_cache_dtype="int8"), draft=layer)
        answers.append([answer.ids for answer in engine.generate([Request(prompt, GREEDY) for prompt in prompts(4)])])
    assert answers[0] == answers[1] and engine.stats().accepted_tokens
