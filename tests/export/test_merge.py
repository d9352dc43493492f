"""Merged weights against PEFT's own unmerged model, and what an export may not do to a disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from npukit.errors import NpukitError
from npukit.export.merge import merge
from npukit.llm.models.checkpoint import HASHES

IDS = torch.arange(5, 29).view(2, 12)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def make_adapter(model: Path, folder: Path, seed: int = 1, new_tokens: int = 0, **options: Any) -> torch.Tensor:
    """Save an adapter whose every part was trained, and return the logits of the model with it, unmerged."""
    from peft import LoraConfig, get_peft_model

    base = load(model)
    if new_tokens:
        base.resize_token_embeddings(base.config.vocab_size + new_tokens)
    adapted = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **{"r": 4, **options}))
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in adapted.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn_like(weight)
    adapted.save_pretrained(folder)
    return logits(adapted)


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {}, {"target_modules": "all-linear"}),
    "rs-LoRA": ("llama", {}, {"target_modules": ["q_proj", "up_proj"], "use_rslora": True, "lora_alpha": 5}),
    "patterns": (
        "qwen2",
        {},
        {
            "target_modules": ["q_proj", "v_proj"],
            "rank_pattern": {"v_proj": 2},
            "alpha_pattern": {"0.self_attn.q_proj": 3},
        },
    ),
    "DoRA": ("qwen2", {}, {"target_modules": ["q_proj", "down_proj", "embed_tokens"], "use_dora": True}),
    "biases": ("qwen2", {}, {"target_modules": ["q_proj", "o_proj"], "bias": "all"}),
    "LoRA's bias": ("qwen2", {}, {"target_modules": ["q_proj"], "lora_bias": True}),
    "modules to save": ("llama", {}, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]}),
    "tied, both trained": (
        "qwen2",
        {"tie_word_embeddings": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    ),
    "tied, one trained": (
        "qwen2",
        {"tie_word_embeddings": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ),
    "tied, tokens": (
        "qwen2",
        {"tie_word_embeddings": True},
        {"target_modules": ["q_proj"], "trainable_token_indices": [7, 9]},
    ),
    "new tokens": (
        "llama",
        {},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"], "new_tokens": 3},
    ),
    "Conv1D": ("gpt2", {}, {"target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "Conv1D and Linear": ("gpt2", {}, {"target_modules": ["c_proj", "wte", "lm_head"]}),
    "Conv1D with DoRA": ("gpt2", {}, {"target_modules": ["c_attn", "c_proj"], "use_dora": True}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")
def test_merged_equals_unmerged(case: str, make_model: Any, tmp_path: Path) -> None:
    family, model_options, options = CASES[case]
    model = make_model(family, **model_options)
    unmerged = make_adapter(model, tmp_path / "lora", **options)
    merge(model, [tmp_path / "lora"], tmp_path / "merged")
    merged, before = logits(load(tmp_path / "merged")), logits(load(model))
    assert merged.shape == unmerged.shape
    assert (unmerged[..., : before.shape[-1]] - before).abs().max() > 0.01
    assert (merged - unmerged).abs().max() < 1e-5 * unmerged.abs().max().clamp(min=1)


@pytest.fixture(scope="module")
def model(make_model: Any) -> Path:
    return make_model("llama")


@pytest.fixture(scope="module")
def lora(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    make_adapter(model, folder, target_modules=["q_proj", "v_proj"])
    return folder


def test_several_adapters_are_merged_one_after_the_other(model: Path, lora: Path, tmp_path: Path) -> None:
    merge(model, [lora], tmp_path / "first")
    expected = make_adapter(tmp_path / "first", tmp_path / "lora2", seed=2, target_modules=["q_proj", "o_proj"])
    merge(model, [lora, tmp_path / "lora2"], tmp_path / "both")
    assert (logits(load(tmp_path / "both")) - expected).abs().max() < 1e-5 * expected.abs().max()


def test_shards_dtype_and_tokenizer(model: Path, lora: Path, tmp_path: Path) -> None:
    (lora / "tokenizer_config.json").write_text((model / "tokenizer_config.json").read_text())
    (lora / "chat_template.jinja").write_text("the adapter's own")
    done = merge(model, [lora], tmp_path / "merged", dtype="bfloat16", shard_bytes=30_000)
    index = json.loads((tmp_path / "merged/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2 and done.dtype == "bfloat16" and done.changed == 4
    exact = merge(model, [lora], tmp_path / "exact")
    (file,) = [name for name in exact.files if name.endswith(".safetensors")]
    for name, expected in load_file(tmp_path / "exact" / file).items():
        with safe_open(tmp_path / "merged" / index["weight_map"][name], "pt") as shard:
            assert torch.equal(shard.get_tensor(name), expected.bfloat16())
    assert json.loads((tmp_path / "merged/config.json").read_text())["dtype"] == "bfloat16"
    assert (tmp_path / "merged/chat_template.jinja").read_text() == "the adapter's own"
    assert (tmp_path / "merged/tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()


def test_pickles_become_safetensors(model: Path, tmp_path: Path) -> None:
    weights = load_file(model / "model.safetensors")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((model / "config.json").read_text())
    torch.save(weights, pickled / "pytorch_model.bin")
    merge(pickled, [], tmp_path / "safe")
    written = load_file(tmp_path / "safe/model.safetensors")
    assert written.keys() == weights.keys() and all(torch.equal(written[name], weights[name]) for name in weights)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


def test_code_in_pickles_is_not_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text((model / "config.json").read_text())
    torch.save({"lm_head.weight": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(NpukitError, match="without running"):
        merge(tmp_path, [], tmp_path / "out")
    assert not (tmp_path / "pwned").exists() and not (tmp_path / "out").exists()


def test_an_adapter_of_another_model_is_refused(lora: Path, make_model: Any, tmp_path: Path) -> None:
    other = make_model("gpt2")
    with pytest.raises(NpukitError, match="is this its base model"):
        merge(other, [lora], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_the_command_finds_an_adapters_base_and_replaces_only_by_force(npukit: Any, lora: Path, tmp_path: Path) -> None:
    output = tmp_path / "merged"
    done = npukit("export", lora, "--output", output, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"]["changed"] == 4
    before = (output / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(NpukitError, match="another"):
        merge(output, [], output, force=True)
    with pytest.raises(NpukitError, match="--force"):
        merge(lora.parent / "nothing", [], output)
    assert (output / "model.safetensors").stat().st_mtime_ns == before
    merge(_base(lora), [lora], output, dtype="float16", force=True)
    assert {tensor.dtype for tensor in load_file(output / "model.safetensors").values()} == {torch.float16}
    assert [file.name for file in tmp_path.iterdir()] == ["merged"]


def _base(lora: Path) -> Path:
    return Path(json.loads((lora / "adapter_config.json").read_text())["base_model_name_or_path"])


SLOW = """
import time
import npukit.export.safetensors as safetensors
contiguous = safetensors.Tensor.contiguous
safetensors.Tensor.contiguous = lambda tensor: (time.sleep(0.2), contiguous(tensor))[1]
from npukit.cli import main
main()
"""


def test_a_killed_export_leaves_nothing_under_the_name(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, "export", str(model), "--output", str(tmp_path / "out")]
    process = subprocess.Popen(command)
    while not any(file.stat().st_size > 20_000 for file in tmp_path.glob(".unfinished-*/*.safetensors")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (left,) = tmp_path.iterdir()
    os.utime(left, (0, 0))  # not so new that somebody may be about to use it
    merge(model, [], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "the next export of it removes what is left"


def test_a_flipped_bit_of_exported_weights_is_found(model: Path, tmp_path: Path) -> None:
    merge(model, [], tmp_path / "out", shard_bytes=20_000)
    merge(tmp_path / "out", [], tmp_path / "again")
    file = sorted((tmp_path / "out").glob("*.safetensors"))[1]
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    with pytest.raises(NpukitError, match=file.name):
        merge(tmp_path / "out", [], tmp_path / "damaged")
    (tmp_path / "out" / HASHES).unlink()
    merge(tmp_path / "out", [], tmp_path / "changed")
