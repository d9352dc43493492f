"""Linear layers in 8 bits: near the model that they were made from, and the engine answers as that model does."""

from __future__ import annotations

import pytest
import torch
from tests.inference.engine.conftest import MakeModel, generated, prompts

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.fused import fuse
from npukit.inference.engine.w8a8 import W8A8Linear, quantize

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_probabilities_stay_near_in_half_the_memory(kind: str, make_model: MakeModel) -> None:
    model, ids = make_model(kind), torch.tensor([prompts(1)[0]])
    before, size = model(ids).logits.log_softmax(-1), model.get_memory_footprint()
    quantize(model)
    after = model(ids).logits.log_softmax(-1)
    divergence = torch.nn.functional.kl_div(after, before, log_target=True, reduction="batchmean") / ids.shape[1]
    assert divergence < 0.02
    linears = [module for module in model.modules() if isinstance(module, W8A8Linear)]
    assert bool(linears) == (kind == "qwen2"), "GPT-2 has no linear layers of torch but its output"
    if linears:
        assert model.get_memory_footprint() < 0.6 * size
        assert model.get_output_embeddings().weight.dtype == torch.float32


def test_joined_layers_compute_what_each_does(make_model: MakeModel) -> None:
    model, ids = make_model("qwen2"), torch.tensor([prompts(1)[0]])
    quantize(model)
    apart = model(ids).logits
    fuse(model)
    assert torch.equal(model(ids).logits, apart)
    attention = model.model.layers[0].self_attn
    hidden = torch.randn(1, 3, 64)
    first = attention.q_proj(hidden)
    assert torch.equal(attention.v_proj(hidden.clone()), attention.v_proj.common[0].compute(hidden)[2])
    assert first.shape[-1] == attention.q_proj.out_features


def test_the_engine_answers_as_the_quantized_model(make_model: MakeModel) -> None:
    reference = make_model("qwen2")
    quantize(reference)
    asked = prompts(4)
    engine = Engine(make_model("qwen2"), EngineOptions(max_num_seqs=4, quantization="w8a8"))
    assert engine.is_paged
    answers = engine.generate([Request(prompt, GREEDY) for prompt in asked])
    assert [answer.ids for answer in answers] == [generated(reference, prompt, 8) for prompt in asked]
