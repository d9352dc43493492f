"""Write a model as GGUF for llama.cpp and Ollama, one tensor at a time."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npukit.errors import NpukitError
from npukit.export.folder import check_output, new_folder
from npukit.export.merge import MergedWeights, make_skeleton
from npukit.export.safetensors import Progress
from npukit.llm.models.checkpoint import open_checkpoint
from npukit.llm.models.folder import read_json
from npukit.packages import require

FILE = "model.gguf"
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}  # by llama.cpp's names
# llama.cpp's names of pre-tokenizers, by a regular expression in tokenizer.json that identifies them.
_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {_SPLIT % r"\p{N}{1,3}": "llama-bpe", _SPLIT % r"\p{N}": "qwen2"}
OLLAMA = "FROM ./model.gguf\n"  # the file contains its chat template, which Ollama reads


@dataclass(frozen=True)
class GgufExported:
    """A GGUF file that was written."""

    output: Path
    architecture: str
    tensors: int
    bytes: int
    dtype: str
    adapters: tuple[str, ...] = ()


def export_gguf(
    model: Path,
    adapters: Sequence[Path],
    output: Path,
    *,
    dtype: str = "auto",
    force: bool = False,
    progress: Progress = lambda done, total: None,
) -> GgufExported:
    """Write `output`/model.gguf with its tokenizer and chat template, and a Modelfile for Ollama.

    Vectors are in float32, as llama.cpp requires; matrices are in `dtype`, or as they are.

    >>> export_gguf(Path("qwen2"), [Path("lora")], Path("qwen2-gguf")).architecture
    'qwen2'
    """
    require("gguf", extra="use")
    import gguf

    check_output(output, force, (model, *adapters))
    skeleton = make_skeleton(model, trust_remote_code=False)
    config = skeleton.config
    if config.model_type not in ARCHITECTURES:
        raise NpukitError(
            f"{model} is a {config.model_type}: GGUF is supported for {', '.join(ARCHITECTURES)}. Use `npukit export`, "
            "then llama.cpp's convert_hf_to_gguf.py on the result."
        )
    name = ARCHITECTURES[config.model_type]
    weights = MergedWeights(model, open_checkpoint(model), adapters, trust_remote_code=False)
    plan = weights.plan(None if dtype == "auto" else getattr(torch, dtype))
    kinds = {weight: _kind(gguf, planned.shape, planned.dtype) for weight, planned in plan.items()}
    architecture = next(number for number, known in gguf.MODEL_ARCH_NAMES.items() if known == name)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    total, done = sum(planned.bytes for planned in plan.values()), 0
    with new_folder(output, total, force, (model, *adapters)) as folder, _without_logs():
        writer = gguf.GGUFWriter(folder / FILE, name)
        _describe(writer, gguf, config, model.name)
        _add_tokenizer(writer, gguf, [*reversed(adapters), model], config.vocab_size)
        for weight, planned in plan.items():
            width = gguf.GGML_QUANT_SIZES[kinds[weight]][1]
            size = int(np.prod(planned.shape)) * width
            writer.add_tensor_info(_gguf_name(names, weight), planned.shape, np.dtype(np.float32), size, kinds[weight])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for weight, planned in plan.items():
            tensor = weights.tensor(weight)
            if name == "llama":
                tensor = _for_llama_cpp(weight, tensor, config)
            writer.write_tensor_data(gguf.quants.quantize(tensor.float().contiguous().numpy(), kinds[weight]))
            done += planned.bytes
            progress(done, total)
        writer.close()
        (folder / "Modelfile").write_text(OLLAMA, encoding="utf-8")
        size = (folder / FILE).stat().st_size
    used = sorted({kind.name for kind in kinds.values()})
    return GgufExported(output, name, len(plan), size, ", ".join(used), tuple(map(str, adapters)))


def _kind(gguf: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    kinds = gguf.GGMLQuantizationType
    known = {torch.bfloat16: kinds.BF16, torch.float16: kinds.F16, torch.float32: kinds.F32}
    if dtype not in known:
        raise NpukitError(f"The weights are in {dtype}, which is quantised: export the model that they were made from.")
    return kinds.F32 if len(shape) == 1 else known[dtype]


def _gguf_name(names: Any, name: str) -> str:
    known: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if known is None:
        raise NpukitError(f"llama.cpp has no name for the weight {name}: GGUF cannot hold this model.")
    return known


def _for_llama_cpp(name: str, tensor: Tensor, config: Any) -> Tensor:
    """Reorder a Llama's heads: llama.cpp rotates adjacent numbers, transformers the two halves of each head."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    count = next((heads[head] for head in heads if f".{head}." in name), None)
    if count is None:
        return tensor
    halves = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def _describe(writer: Any, gguf: Any, config: Any, name: str) -> None:
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in ("default", "linear", "yarn"):
        raise NpukitError(f"npukit cannot write rotary embeddings of the type {kind} as GGUF.")
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope.get("rope_theta", 10_000.0))
    writer.add_vocab_size(config.vocab_size)
    if kind != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])


def _add_tokenizer(writer: Any, gguf: Any, folders: Sequence[Path], rows: int) -> None:
    """The tokenizer in the first folder that has one: token types, merges, special tokens and the chat template."""
    from transformers import AutoTokenizer

    folder = next(folder for folder in folders if (folder / "tokenizer_config.json").is_file())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    splits = _splits(folder)
    texts = {number: text for text, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    kinds = [
        gguf.TokenType.UNUSED
        if number not in texts
        else gguf.TokenType.NORMAL
        if number not in added
        else gguf.TokenType.CONTROL
        if added[number].special
        else gguf.TokenType.USER_DEFINED
        for number in range(rows)
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splits)
    writer.add_token_list([texts.get(number, f"[PAD{number}]") for number in range(rows)])
    writer.add_token_types(kinds)
    special = gguf.SpecialVocab(folder, load_merges=True, n_vocab=rows)
    special.chat_template = tokenizer.chat_template or special.chat_template
    special.add_to_gguf(writer, quiet=True)


def _splits(folder: Path) -> str:
    """llama.cpp's name for the tokenizer's way of splitting text."""
    steps = read_json(folder / "tokenizer.json").get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    patterns = [step["pattern"].get("Regex", "") for step in steps if step.get("type") == "Split"]
    if not patterns and any(step.get("type") == "ByteLevel" and step.get("use_regex", True) for step in steps):
        return "gpt-2"
    if len(patterns) == 1 and patterns[0] in SPLITS:
        return SPLITS[patterns[0]]
    raise NpukitError(
        f"npukit does not know llama.cpp's name for the pre-tokenizer of {folder / 'tokenizer.json'}: use llama.cpp's "
        "convert_hf_to_gguf.py on what `npukit export` writes."
    )


class _without_logs:
    """Silence the gguf package, which logs every step."""

    def __enter__(self) -> None:
        self._level = logging.getLogger("gguf").level
        logging.getLogger("gguf").setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("gguf").setLevel(self._level)
