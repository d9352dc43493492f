"""npukit export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.options import CardOption, JsonOption
from npukit.cli.results import show
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.report.report import counted
from npukit.report.terminal import say

if TYPE_CHECKING:
    from npukit.llm.config.use import Use

FORM = "Format"
UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


Onnx = Annotated[
    bool, typer.Option("--onnx", rich_help_panel=FORM, help="Write ONNX, checked against PyTorch with onnxruntime.")
]
Om = Annotated[
    bool,
    typer.Option(
        "--om", rich_help_panel=FORM, help="Write ONNX, and compile it with atc; without atc, write a script."
    ),
]
Gguf = Annotated[bool, typer.Option("--gguf", rich_help_panel=FORM, help="Write GGUF for llama.cpp and Ollama.")]
W8a8 = Annotated[
    bool, typer.Option("--w8a8", rich_help_panel=FORM, help="Quantise to int8 for vllm-ascend (W8A8_DYNAMIC).")
]
Opset = Annotated[int, typer.Option(rich_help_panel=FORM, help="With --onnx: 13, which ATC reads, or 17.")]
Length = Annotated[
    list[int] | None,
    typer.Option(
        "--length",
        show_default="512",
        rich_help_panel=FORM,
        help="With --om: tokens of a text. Repeatable: several become dynamic-dimension profiles.",
    ),
]
Batch = Annotated[int, typer.Option("--batch", min=1, rich_help_panel=FORM, help="With --om: texts at a time.")]
Text = Annotated[
    Path | None,
    typer.Option(
        "--text",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        show_default=False,
        rich_help_panel=FORM,
        help="With --w8a8: text to measure the perplexity on.",
    ),
]


def export(
    use: Use,
    onnx: Onnx = False,
    om: Om = False,
    w8a8: W8a8 = False,
    gguf: Gguf = False,
    opset: Opset = 13,
    length: Length = None,
    batch: Batch = 1,
    card: CardOption = DEFAULT_CARD,
    text: Text = None,
    json: JsonOption = False,
) -> None:
    """Write a model for other programs, with its adapters merged.

    By default this is a folder for transformers, in safetensors, called MODEL-merged; weights pass through memory one
    tensor at a time. Nothing appears under the name of the output until it is complete. ms-swift's `export` and
    LLaMA-Factory's export options work unchanged.

    Examples:
        npukit export run  # merge LoRA into its base model, as run-merged
        npukit export run --gguf --output run-gguf  # for llama.cpp and Ollama
        npukit export run-merged --w8a8  # int8 for vllm-ascend
    """
    chosen = {"onnx": onnx, "om": om, "w8a8": w8a8, "gguf": gguf}
    kinds = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(kinds) > 1:
        raise NpukitError("Choose one of --onnx, --om, --w8a8 and --gguf.")
    kind = kinds[0] if kinds else "merged"
    output = use.export.output or Path(f"{use.model.path.rstrip('/')}-{kind}")
    use = use.model_copy(update={"engine": use.engine.model_copy(update={"allow_pickles": True})})
    if use.export.merge_lora and not _parts(use)[1]:
        raise NpukitError(f"--merge-lora: {use.model.path} is not an adapter: name one with --adapter.")
    if onnx or om:
        _export_onnx(use, output, opset, om, card, batch, tuple(length or (512,)), json)
    elif w8a8:
        _quantise(use, output, text, json)
    elif gguf:
        _export_gguf(use, output, json)
    else:
        _merge(use, output, json)


def _parts(use: Use) -> tuple[Path, tuple[Path, ...]]:
    from npukit.llm.models.folder import find_parts

    return find_parts(use.model.path, use.merged)


def _merge(use: Use, output: Path, json: bool) -> None:
    from npukit.export.merge import merge
    from npukit.report.progress import progress

    folder, adapters = _parts(use)
    with progress("writing", "bytes") as on_progress:
        done = merge(
            folder,
            adapters,
            output,
            dtype=use.export.dtype,
            shard_bytes=_bytes(use.export.shard_size),
            force=use.export.force,
            trust_remote_code=use.model.trust_remote_code,
            progress=on_progress,
        )
    for note in done.notes:
        say(note)
    merged = f", {done.changed} changed by {', '.join(done.adapters)}" if done.adapters else ""
    show(done, f"{done.output}: {counted(done.tensors, 'tensor')}{merged}; {_size(done.bytes)} in {done.dtype}", json)


def _export_gguf(use: Use, output: Path, json: bool) -> None:
    from npukit.export.gguf import FILE, export_gguf
    from npukit.report.progress import progress

    folder, adapters = _parts(use)
    with progress("writing", "bytes") as on_progress:
        options = use.export
        done = export_gguf(folder, adapters, output, dtype=options.dtype, force=options.force, progress=on_progress)
    merged = f", with {', '.join(done.adapters)} merged" if done.adapters else ""
    figures = f"{done.architecture}, {counted(done.tensors, 'tensor')}{merged}; {_size(done.bytes)} in {done.dtype}"
    show(done, f"{done.output / FILE}: {figures}. For Ollama: ollama create NAME -f {done.output}/Modelfile", json)


def _export_onnx(
    use: Use,
    output: Path,
    opset: int,
    om: bool,
    card: str,
    batch: int,
    lengths: tuple[int, ...],
    json: bool,
) -> None:
    from npukit.explain.explanation import explain
    from npukit.explain.text import as_text
    from npukit.export.om import atc_command, make_om
    from npukit.export.onnx import FILE, export_onnx

    if om:
        atc_command(Path(FILE), output, card, batch, lengths)  # a mistake is told before the work
    done = export_onnx(use, output, opset, use.export.force)
    figures = f"opset {done.opset}, {counted(done.operators, 'operator')}, {_size(done.bytes)}"
    text = f"{done.output / FILE}: {figures}; differs from PyTorch by {done.difference:.1e}"
    if not om:
        show(done, text, json)
        return
    made = make_om(
        output / FILE, output / "model.om", card, batch, lengths, explained=lambda log: as_text(explain(log))
    )
    how = "compiled by atc" if made.compiled else "atc is not installed here: run this script where it is"
    show(made, f"{text}\n{made.output}: {how}", json)


def _quantise(use: Use, output: Path, text: Path | None, json: bool) -> None:
    from npukit.export.w8a8 import quantise
    from npukit.report.progress import progress

    folder, adapters = _parts(use)
    if adapters:
        raise NpukitError("Merge the adapters first: `npukit export MODEL --adapter A`, then use --w8a8 on the result.")
    with progress("writing", "bytes") as on_progress:
        done = quantise(folder, output, text, use.export.force, use.model.trust_remote_code, on_progress)
    before, after = done.perplexity_before, done.perplexity_after
    size = f"{_size(done.bytes_before)} became {_size(done.bytes)}, {counted(done.layers, 'layer')} in int8"
    show(done, f"{done.output}: {size}; perplexity {before:.4f} before, {after:.4f} after", json)


def _bytes(text: str) -> int:
    """
    >>> _bytes("5GB")
    5000000000
    """
    number = text.rstrip("BbGgIiKkMm")
    unit = text[len(number) :].lower() or "gb"
    try:
        size = int(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        size = 0
    if size <= 0:
        raise NpukitError(f"--shard-size is {text!r}: give a size such as 5GB or 500MB.")
    return size


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10**9 else f"{count / 1e6:.1f} MB"
