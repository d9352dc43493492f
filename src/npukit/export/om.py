"""Compile an ONNX model into an .om for one kind of card with CANN's atc, or write the command as a script."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from npukit.errors import NpukitError
from npukit.facts.cards import card as find_card
from npukit.report.writing import whole_file, write_text

MIN_GEARS, MAX_GEARS = 2, 100  # what atc allows with --dynamic_dims
PARALLEL = "TE_PARALLEL_COMPILER"


@dataclass(frozen=True)
class OmMade:
    """What came of it: an .om, or the script that makes it where there is atc."""

    output: Path
    command: tuple[str, ...]
    compiled: bool


def atc_command(onnx: Path, output: Path, card: str, batch: int, lengths: tuple[int, ...]) -> tuple[str, ...]:
    """The command that compiles a model for texts of one length, or of several (gears).

    >>> atc_command(Path("m.onnx"), Path("m.om"), "910B3", 1, (128, 512))[-2:]
    ('--dynamic_dims=128,128;512,512', '--log=error')
    """
    if not lengths or min(lengths) < 1 or batch < 1 or len(set(lengths)) != len(lengths):
        raise NpukitError("Give the lengths of texts as different positive numbers, such as --length 128 --length 512.")
    if len(lengths) > MAX_GEARS:
        raise NpukitError(f"atc accepts at most {MAX_GEARS} lengths; 3 or 4 are recommended.")
    several = len(lengths) >= MIN_GEARS
    size = "-1" if several else str(lengths[0])
    shape = ";".join(f"{name}:{batch},{size}" for name in ("input_ids", "attention_mask"))
    gears = [f"--dynamic_dims={';'.join(f'{length},{length}' for length in sorted(lengths))}"] if several else []
    return (
        "atc",
        "--framework=5",
        f"--model={onnx}",
        f"--output={output.with_suffix('')}",  # atc adds .om
        f"--soc_version={find_card(card).soc}",
        "--input_format=ND",
        f"--input_shape={shape}",
        "--precision_mode_v2=origin",  # its default would make fp16 of everything
        *gears,
        "--log=error",
    )


def make_om(
    onnx: Path,
    output: Path,
    card: str,
    batch: int = 1,
    lengths: tuple[int, ...] = (512,),
    environ: Mapping[str, str] = os.environ,
    explained: Callable[[str], str] = lambda log: "",
) -> OmMade:
    """Compile the model where atc is; elsewhere write a script beside that does it.

    `explained` says what is known about the errors in atc's log.
    """
    if not onnx.is_file():
        raise NpukitError(f"There is no file {onnx}: write it with `npukit export MODEL --onnx` first.")
    output = output.with_suffix(".om")
    atc = shutil.which("atc", path=environ.get("PATH"))
    target = output if atc else output.with_suffix(".sh")
    if atc is None:
        beside = Path(os.path.relpath(onnx, output.parent))  # the folder is often copied to where atc is
        command = atc_command(beside, Path(output.name), card, batch, lengths)
        write_text(target, _script(command))
        target.chmod(0o755)
        return OmMade(target, command, compiled=False)
    with whole_file(output) as unfinished:
        command = atc_command(onnx, unfinished, card, batch, lengths)
        _compile(atc, command, environ, explained)
        if not unfinished.stat().st_size:
            raise NpukitError("atc wrote neither a model nor an error: see its log in ~/ascend/log.", on_the_way=True)
    return OmMade(output, command, compiled=True)


def _compile(atc: str, command: tuple[str, ...], environ: Mapping[str, str], explained: Callable[[str], str]) -> None:
    variables = {PARALLEL: "8", **environ}
    done = subprocess.run([atc, *command[1:]], env=variables, capture_output=True, text=True, errors="replace")
    log = done.stdout + done.stderr
    if done.returncode:
        lines = [line for line in log.splitlines() if line.strip()]
        known = explained(log)
        shown = "\n  ".join(lines[-5:])
        sentence = f"atc failed with exit code {done.returncode}:\n  {shown}" + (f"\n{known}" if known else "")
        raise NpukitError(sentence, on_the_way=True)


def _script(command: tuple[str, ...]) -> str:
    arguments = " \\\n    ".join(shlex.quote(argument) for argument in command)
    return (
        "#!/usr/bin/env bash\n"
        "# Run this where CANN is installed, with its set_env.sh sourced.\n"
        f'set -euo pipefail\ncd "$(dirname "$0")"\nexport {PARALLEL}=${{{PARALLEL}:-8}}\n{arguments}\n'
    )
