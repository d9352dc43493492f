"""Export a model as ONNX that ATC reads too, and check it against PyTorch.

torch's older exporter with eager attention writes a real opset 13, whose operators ATC knows; the newer one writes
opset 18 and later. There is no cache in it: it scores a whole text at once.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.export.folder import check_output, new_folder
from npukit.export.merge import copy_others
from npukit.inference.loading import load
from npukit.llm.config.use import Use
from npukit.packages import require

OPSETS = (13, 17)  # ATC reads ONNX 1.12, whose last opset is 17
TOLERANCE = 1e-4
SHAPES = ((1, 8), (2, 13))  # rows and tokens to check with
LARGEST = 2 * 10**9  # bytes that fit into one protobuf file
FILE = "model.onnx"


@dataclass(frozen=True)
class OnnxExported:
    """An ONNX model that was written, and how far it is from PyTorch's logits."""

    output: Path
    opset: int
    bytes: int
    operators: int
    difference: float  # the largest, relative to the largest logit


class _Logits(nn.Module):
    """The model as a function of two tensors."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return logits


def export_onnx(use: Use, output: Path, opset: int = 13, force: bool = False) -> OnnxExported:
    """Write `output`/model.onnx with its tokenizer: input_ids and attention_mask of any size in, logits out, in fp32.

    >>> export_onnx(Use(model={"path": "tiny-qwen2"}), Path("tiny-onnx")).difference < 1e-4
    True
    """
    require("onnx", "onnxruntime", extra="use")
    if opset not in OPSETS:
        raise NpukitError(f"Opset {opset} cannot be written: choose 13, which ATC reads, or 17.")
    check_output(output, force)
    in_fp32 = use.model_copy(update={"model": use.model.model_copy(update={"dtype": "float32"})})
    loaded = load(in_fp32, torch.device("cpu"))
    size = 4 * sum(weight.numel() for weight in loaded.model.parameters())
    if size > LARGEST:
        raise NpukitError(
            f"{use.model.path} takes {size / 1e9:.1f} GB in fp32, but an ONNX file can hold 2 GB: export a smaller "
            "model, or serve this one with `npukit serve`."
        )
    with new_folder(output, size, force, (loaded.folder, *loaded.adapters)) as folder:
        model = _Logits(_eager(loaded.model)).eval()
        _write(model, folder / FILE, opset)
        difference = _difference(model, folder / FILE, loaded.model.config.get_text_config().vocab_size)
        if difference > TOLERANCE:
            raise NpukitError(
                f"onnxruntime's logits differ from PyTorch's by {difference:.1e} of the largest: nothing was written."
            )
        copy_others(loaded.folder, loaded.adapters, folder)
        operators, bytes = _look_at(folder / FILE)
    return OnnxExported(output, opset, bytes, operators, difference)


def _eager(model: Any) -> Any:
    model.set_attn_implementation("eager")  # SDPA brings operators that ATC does not know
    return model


def _write(model: nn.Module, file: Path, opset: int) -> None:
    ids = torch.ones(1, 8, dtype=torch.int64)
    axes = {0: "batch", 1: "tokens"}
    with torch.no_grad(), _silence():
        torch.onnx.export(
            model,
            (ids, torch.ones_like(ids)),
            str(file),
            input_names=["input_ids", "attention_mask"],
            output_names=["logits"],
            dynamic_axes=dict.fromkeys(("input_ids", "attention_mask", "logits"), axes),
            opset_version=opset,
            dynamo=False,
        )


def _difference(model: nn.Module, file: Path, words: int) -> float:
    """How far onnxruntime is from PyTorch, with some padding and without."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for shape in SHAPES:
        ids = torch.randint(0, words, shape, generator=generator)
        mask = torch.ones_like(ids)
        mask[-1, : shape[0] - 1] = 0  # padding on the left
        with torch.no_grad():
            expected = model(ids, mask)
        logits = session.run(["logits"], {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
        real = mask.bool()
        apart = (torch.from_numpy(logits) - expected)[real].abs().max() / expected[real].abs().max()
        largest = max(largest, float(apart))
    return largest


def _look_at(file: Path) -> tuple[int, int]:
    import onnx

    graph = onnx.load(str(file), load_external_data=False).graph
    return len({node.op_type for node in graph.node}), file.stat().st_size


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporter warns of every constant that it finds, and of its own age."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
