"""What loading refuses, and that what it accepts computes as PEFT does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.inference import mtp

from npukit.errors import NpukitError
from npukit.inference import loading
from npukit.inference.engine.request import Request, SamplingParams
from npukit.inference.loading import load, start_engine
from npukit.llm.config.use import EngineOptions, Use

CPU = torch.device("cpu")
IDS = torch.arange(5, 29).view(2, 12)


@pytest.fixture
def model(tiny_qwen2: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_qwen2, tmp_path / "model"))


@pytest.fixture
def lora(model: Path, tmp_path: Path) -> tuple[Path, torch.Tensor]:
    """An adapter, saved with a tokenizer of its own, and the logits of the model with it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"]
    )
    adapted: Any = get_peft_model(base, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in adapted.parameters():
            weight += 0.1 * torch.randn_like(weight) * weight.requires_grad
        adapted.save_pretrained(tmp_path / "lora")
        logits = adapted.eval()(IDS).logits
    return tmp_path / "lora", logits


def test_an_adapter_alone_brings_its_base(lora: tuple[Path, torch.Tensor], model: Path) -> None:
    folder, expected = lora
    loaded = load(Use(model={"path": str(folder)}), CPU)
    with torch.no_grad():
        assert (loaded.model(IDS).logits - expected).abs().max() < 1e-5 * expected.abs().max()
    assert loaded.folder == model and loaded.adapters == (folder,)
    assert loaded.tokenizer.eos_token_id in loaded.end_tokens
    both = load(Use(model={"path": str(model)}, adapters=[str(folder)]), CPU)
    assert torch.equal(both.model.lm_head.weight, loaded.model.lm_head.weight)


def test_defaults_are_the_models_own(model: Path) -> None:
    assert load(Use(model={"path": str(model)}), CPU).defaults.temperature == 0
    written = {"do_sample": True, "temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05, "eos_token_id": [1, 7]}
    (model / "generation_config.json").write_text(json.dumps(written))
    loaded = load(Use(model={"path": str(model)}), CPU)
    assert (loaded.defaults.temperature, loaded.defaults.top_k, loaded.defaults.repetition_penalty) == (0.7, 20, 1.05)
    assert {1, 7} <= loaded.end_tokens


def test_missing_and_misshapen_weights_are_named(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    save_file(
        {name: weight for name, weight in weights.items() if "layers.1.mlp" not in name}, model / "model.safetensors"
    )
    with pytest.raises(NpukitError, match=r"layers\.1\.mlp\.down_proj"):
        load(Use(model={"path": str(model)}), CPU)
    weights["model.norm.weight"] = torch.ones(65)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(NpukitError, match=r"model\.norm\.weight is \(65,\) instead of \(64,\)"):
        load(Use(model={"path": str(model)}), CPU)


def test_a_model_without_a_tokenizer_is_refused(model: Path) -> None:
    (model / "tokenizer.json").unlink()  # tokenizer_config.json stays
    with pytest.raises(NpukitError, match=r"has no tokenizer: .*tokenizer\.json"):
        loading.load_tokenizer(Use(model={"path": str(model)}))


def test_pickles_and_foreign_code_are_refused_unless_asked_for(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "pytorch_model.bin")
    with pytest.raises(NpukitError, match="--allow-pickles"):
        load(Use(model={"path": str(model)}), CPU)
    loaded = load(Use(model={"path": str(model)}, engine={"allow_pickles": True}), CPU)
    assert torch.equal(loaded.model.lm_head.weight, weights.get("lm_head.weight", weights["model.embed_tokens.weight"]))
    config = json.loads((model / "config.json").read_text())
    foreign = {**config, "model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (model / "config.json").write_text(json.dumps(foreign))
    with pytest.raises(NpukitError, match="--trust-remote-code"):
        load(Use(model={"path": str(model)}, engine={"allow_pickles": True}), CPU)


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_host_memory", lambda: 1000)
    monkeypatch.setattr(loading, "_load_weights", None)
    with pytest.raises(NpukitError, match="GiB"):
        load(Use(model={"path": str(model)}), CPU)


def test_a_draft_model_needs_the_same_tokenizer(model: Path, tmp_path: Path) -> None:
    options = EngineOptions(max_num_seqs=2, speculative_model=str(model), num_speculative_tokens=2)
    engine = start_engine(load(Use(model={"path": str(model)})), options)
    answer = engine.generate([Request((5, 6, 7), SamplingParams(temperature=0, max_tokens=6))])[0]
    assert len(answer.ids) == 6 and engine.stats().accepted_tokens == engine.stats().draft_tokens > 0

    other = shutil.copytree(model, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][-1], "id": 399, "content": "<|more|>"})
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(NpukitError, match="tokenizer"):
        start_engine(load(Use(model={"path": str(other)})), options)
    with pytest.raises(NpukitError, match="choose one"):
        start_engine(load(Use(model={"path": str(model)})), options.model_copy(update={"prompt_lookup": 3}))


def test_the_layer_of_the_checkpoint_guesses_tokens(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    options = EngineOptions(max_num_seqs=2, speculative_config={"method": "mtp", "num_speculative_tokens": 2})
    folder = mtp.save("glm4_moe", tmp_path / "glm", vocab_size=len(AutoTokenizer.from_pretrained(model)))
    for file in model.glob("tokenizer*"):
        shutil.copy(file, folder)
    engine = start_engine(load(Use(model={"path": str(folder)})), options)
    answer = engine.generate([Request((5, 6, 7), SamplingParams(temperature=0, max_tokens=20))])[0]
    assert len(answer.ids) == 20 and engine.stats().accepted_tokens > 0
    monkeypatch.setattr(loading, "_load_weights", None)  # nothing is read before it is refused
    with pytest.raises(NpukitError, match="multi-token prediction for qwen2 models"):
        load(Use(model={"path": str(model)}, engine=options))


def test_a_cut_download_is_told(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(NpukitError, match="download it again"):
        load(Use(model={"path": str(model)}), CPU)
