"""Bottleneck adapters: what they compute, what ms-swift reads and writes, and a model that is used with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from npukit.errors import NpukitError
from npukit.export.merge import merge
from npukit.inference import LLM, EngineOptions, SamplingParams
from npukit.inference.engine.adapters import read_adapter
from npukit.llm.config.options import Config, ModelOptions, TuningOptions
from npukit.llm.finetune.save import save_model
from npukit.llm.models.adapter import apply_adapter
from npukit.llm.models.loading import load_tokenizer
from npukit.llm.models.outline import look_at
from npukit.llm.models.tuning import tune
from npukit.performance.plan.memory import trained_parameters

IDS = torch.arange(5, 29).view(2, 12)
# As ms-swift 4.5.2 writes it.
CONFIG = {
    "act_layer": "silu",
    "adapter_length": 6,
    "hidden_pos": 0,
    "method_name": "forward",
    "model_key_mapping": None,
    "swift_type": "ADAPTER",
    "target_modules": r"model\.layers\.\d+\.mlp",
}


def shapes(layers: int, hidden: int) -> dict[str, tuple[int, ...]]:
    parts = {
        "linear1.weight": (6, hidden),
        "linear2.weight": (hidden, 6),
        "linear1.bias": (6,),
        "linear2.bias": (hidden,),
    }
    names = [(f"model.layers.{layer}.mlp.adapter_default", part) for layer in range(layers) for part in parts]
    return {f"{module}.{part}": parts[part] for module, part in names}


def base(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def tuned(folder: Path, **options: Any) -> Any:
    model, place = base(folder), ModelOptions(path=str(folder), adapter=options.pop("adapter", None))
    torch.manual_seed(0)
    return tune(model, TuningOptions(method="bottleneck", **options), place)


@pytest.fixture
def saved(tiny_qwen2: Path, tmp_path: Path) -> tuple[Path, Any]:
    """The folder of a trained adapter, and its model."""
    model = tuned(tiny_qwen2, rank=6)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    optimizer = torch.optim.SGD(trained.values(), lr=0.1)
    losses = []
    for _ in range(4):
        loss = model(input_ids=IDS, labels=IDS).loss
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] and all(".mlp.adapter_default." in name for name in trained)
    tokenizer = load_tokenizer(ModelOptions(path=str(tiny_qwen2)), str(tiny_qwen2))
    (tmp_path / "run").mkdir()
    save_model(
        model, {name: value.detach() for name, value in trained.items()}, tmp_path / "run", tokenizer, tiny_qwen2
    )
    return tmp_path / "run", model


def test_ms_swift_finds_what_it_writes_itself(saved: tuple[Path, Any], tiny_qwen2: Path) -> None:
    folder, model = saved
    config = json.loads((folder / "default" / "adapter_config.json").read_text())
    layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
    expected = {**CONFIG, "act_layer": "gelu", "dim": hidden, "model_key_mapping": None}
    assert {**expected, **config}.items() <= {**expected, "base_model_name_or_path": str(tiny_qwen2)}.items()
    written = load_file(folder / "default" / "adapter_model.safetensors")
    assert {name: value.shape for name, value in written.items()} == shapes(layers, hidden)
    wanted = Config(model={"path": str(tiny_qwen2)}, data={"train": "d"}, tuning={"method": "bottleneck", "rank": 6})
    outline = look_at(wanted.model)
    assert outline and trained_parameters(wanted, outline) == sum(value.numel() for value in written.values())


def test_an_adapter_of_ms_swift_computes_the_same(tiny_qwen2: Path, tmp_path: Path) -> None:
    plain = base(tiny_qwen2)
    hidden = plain.config.hidden_size
    known = shapes(plain.config.num_hidden_layers, hidden)
    weights = {name: torch.randn(shape) for name, shape in known.items()}
    (tmp_path / "default").mkdir()
    save_file(weights, tmp_path / "default" / "adapter_model.safetensors")
    (tmp_path / "default" / "adapter_config.json").write_text(json.dumps({**CONFIG, "dim": hidden}))

    def follow(module: Any, _: Any, result: torch.Tensor) -> torch.Tensor:
        first, second = (
            (weights[f"{module.at}.linear{n}.weight"], weights[f"{module.at}.linear{n}.bias"]) for n in (1, 2)
        )
        return result + F.linear(F.silu(F.linear(result, *first)), *second)

    for number, layer in enumerate(plain.model.layers):
        layer.mlp.at = f"model.layers.{number}.mlp.adapter_default"
        layer.mlp.register_forward_hook(follow)
    with_it = base(tiny_qwen2)
    apply_adapter(with_it, tmp_path)
    again = tuned(tiny_qwen2, adapter=tmp_path).eval()
    with torch.no_grad():
        expected = plain(IDS).logits
        torch.testing.assert_close(with_it(IDS).logits, expected)
        torch.testing.assert_close(again(IDS).logits, expected)
    assert all(value.requires_grad == ("adapter_default" in name) for name, value in again.named_parameters())


def test_it_can_be_left_out_for_a_reference(tiny_qwen2: Path) -> None:
    model = tuned(tiny_qwen2, rank=6).eval()
    with torch.no_grad():
        expected = base(tiny_qwen2)(IDS).logits
        with model.disable_adapter():
            assert torch.equal(model(IDS).logits, expected)
        assert not torch.allclose(model(IDS).logits, expected)


def test_a_model_is_used_with_it_and_cannot_be_merged(
    saved: tuple[Path, Any], tiny_qwen2: Path, tmp_path: Path
) -> None:
    folder, model = saved
    llm = LLM(str(folder), EngineOptions(max_num_seqs=2))
    ids = llm.tokenizer.encode("The capital of")
    made = model.eval().generate(torch.tensor([ids]), max_new_tokens=10, do_sample=False, pad_token_id=0)[0, len(ids) :]
    answer = llm.generate("The capital of", SamplingParams(temperature=0, max_tokens=10))[0]
    assert list(answer.token_ids) == made.tolist()
    with pytest.raises(NpukitError, match="only LoRA can be merged"):
        merge(tiny_qwen2, [folder], tmp_path / "merged")
    with pytest.raises(NpukitError, match="only LoRA can be chosen by name"):
        read_adapter("mine", folder)


def test_a_model_that_it_does_not_fit(saved: tuple[Path, Any], tiny_qwen2: Path) -> None:
    folder, _ = saved
    file = folder / "default" / "adapter_model.safetensors"
    save_file({f"other.{name}": value for name, value in load_file(file).items()}, file)
    with pytest.raises(NpukitError, match="no such part"):
        apply_adapter(base(tiny_qwen2), folder)
    plain = base(tiny_qwen2)
    del plain.model.layers[0].mlp
    with pytest.raises(NpukitError, match="have no mlp"):
        tune(plain, TuningOptions(method="bottleneck"), ModelOptions(path="m"))
