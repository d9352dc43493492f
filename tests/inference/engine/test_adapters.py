"""Adapters in one batch answer as PEFT's own model does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.inference.engine.conftest import MakeModel, generated, prompts

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8)
LAYERS = {"llama": ["q_proj", "down_proj"], "gpt2": ["c_attn", "c_fc"]}


def save_adapter(kind: str, folder: Path, make_model: MakeModel, rank: int, rslora: bool) -> list[list[int]]:
    """Make one, and say what PEFT answers with it."""
    model = make_model(kind)
    torch.manual_seed(rank)
    config = LoraConfig(
        r=rank,
        lora_alpha=16,
        target_modules=LAYERS[kind],
        use_rslora=rslora,
        init_lora_weights=False,
        fan_in_fan_out=kind == "gpt2",
    )
    tuned = get_peft_model(model, config)
    tuned.save_pretrained(folder)
    return [generated(tuned, prompt, 8) for prompt in prompts(3)]


@pytest.mark.parametrize("kind", LAYERS)
def test_mixed_in_one_batch(kind: str, make_model: MakeModel, tmp_path: Path) -> None:
    expected = {
        None: [generated(make_model(kind), prompt, 8) for prompt in prompts(3)],
        "small": save_adapter(kind, tmp_path / "small", make_model, 4, rslora=False),
        "large": save_adapter(kind, tmp_path / "large", make_model, 12, rslora=True),
    }
    engine = Engine(make_model(kind), EngineOptions(max_num_seqs=9, max_num_batched_tokens=24, async_scheduling=True))
    engine.load_adapter("small", tmp_path / "small")
    engine.load_adapter("large", tmp_path / "large")
    requests = [Request(prompt, GREEDY, adapter=name) for name in expected for prompt in prompts(3)]
    answers = [answer.ids for answer in engine.generate(requests)]
    assert answers == [ids for answers_ in expected.values() for ids in answers_]
    assert expected["small"] != expected[None] != expected["large"]


def test_unloading_waits_for_who_uses_it(make_model: MakeModel, tmp_path: Path) -> None:
    expected = save_adapter("llama", tmp_path / "one", make_model, 4, rslora=False)
    engine = Engine(make_model("llama"), EngineOptions(max_num_seqs=2))
    engine.load_adapter("one", tmp_path / "one")
    number = engine.add_request(Request(prompts(3)[0], GREEDY, adapter="one"))
    engine.step()
    engine.unload_adapter("one")
    assert engine.adapters == []
    with pytest.raises(NpukitError):
        engine.add_request(Request((1,), adapter="one"))
    ids = []
    while not engine.is_idle:
        ids += [output.token.id for output in engine.step() if output.request_id == number and output.token]
    assert ids == expected[0][-len(ids) :] and len(ids) >= 7
    assert engine.generate([Request(prompts(3)[0], GREEDY)])[0].ids == generated(make_model("llama"), prompts(3)[0], 8)


@pytest.mark.parametrize("change", [{"use_dora": True}, {"peft_type": "PROMPT_TUNING"}, {"bias": "all"}])
def test_other_kinds_are_refused(change: dict[str, object], make_model: MakeModel, tmp_path: Path) -> None:
    save_adapter("llama", tmp_path, make_model, 4, rslora=False)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    engine = Engine(make_model("llama"), EngineOptions(max_num_seqs=2))
    with pytest.raises(NpukitError):
        engine.load_adapter("one", tmp_path)
    assert engine.adapters == []


def test_an_adapter_of_another_model_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    save_adapter("gpt2", tmp_path, make_model, 4, rslora=False)
    with pytest.raises(NpukitError):
        Engine(make_model("llama"), EngineOptions(max_num_seqs=2)).load_adapter("one", tmp_path)


@pytest.mark.parametrize(
    ("kind", "modules", "paged"),
    [
        ("llama", ["embed_tokens", "lm_head"], True),
        ("llama", ["embed_tokens", "lm_head"], False),
        ("qwen3", ["norm"], True),  # norms of queries and keys, too, behind which are heads
        ("gemma2", ["embed_tokens", "mlp"], True),
    ],
)
def test_modules_that_were_trained_whole_and_the_output_layer(
    kind: str, modules: list[str], paged: bool, make_model: MakeModel, tmp_path: Path
) -> None:
    expected = {None: [generated(make_model(kind), prompt, 8) for prompt in prompts(3)]}
    whole = {"target_modules": ["q_proj"], "modules_to_save": modules}
    for name, tuning in {"whole": whole, "head": {"target_modules": ["lm_head"]}}.items():
        torch.manual_seed(3)
        tuned = get_peft_model(make_model(kind), LoraConfig(r=4, init_lora_weights=False, **tuning))
        for weight in tuned.parameters():
            if weight.requires_grad:
                weight.data += 0.5 * torch.randn_like(weight)
        tuned.save_pretrained(tmp_path / name, save_embedding_layers=False)
        expected[name] = [generated(tuned, prompt, 8) for prompt in prompts(3)]
    options = EngineOptions(max_num_seqs=9, max_num_batched_tokens=24, async_scheduling=True, paged=paged)
    engine = Engine(make_model(kind), options)
    for name in ("whole", "head"):
        engine.load_adapter(name, tmp_path / name)
    requests = [Request(prompt, GREEDY, adapter=name) for name in expected for prompt in prompts(3)]
    assert [answer.ids for answer in engine.generate(requests)] == [
        ids for answers_ in expected.values() for ids in answers_
    ]
    assert expected["whole"] != expected[None] != expected["head"]
    engine.unload_adapter("whole")
    engine.unload_adapter("head")
    assert [answer.ids for answer in engine.generate(requests[:3])] == expected[None]
