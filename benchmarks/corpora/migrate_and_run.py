"""Migrate training scripts that we did not write, and train with them on simulated NPUs, to the losses of the CPU.

python -m benchmarks migrate_and_run CHECKOUT... [--packages DIR] [--vendor PATH] [--results FILE] [--only NAME...]

Takes checkouts and fetches nothing: pytorch/examples (as `examples`, at 5dfeb46, before it used torch.accelerator),
nanoGPT, minGPT, dino, mae, DiT, guided-diffusion, pytorch-image-models. Prints a Markdown table with a
row for each script of public_scripts/scripts.yaml, and keeps what it knows in --results, so that a stop loses nothing.

--packages: what the scripts import and this environment lacks, as
    pip install --no-deps --target DIR torchvision==0.28.0 timm==0.3.2 diffusers six omegaconf \
        antlr4-python3-runtime==4.9.3 opencv-python-headless pybind11 addict yapf termcolor platformdirs
torchvision is used without its compiled operators, for which PyPI has no CPU build; timm 0.3.2 with the one import
mended that mae's README tells of. mpi4py and blobfile are stand-ins for one process.
--vendor: pytorch_gpu2npu.sh of msTransplant, Ascend's converter; `python3` must find pandas, libcst, prettytable, jedi.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from benchmarks.corpora.public_scripts.prepare import HERE, Script, scripts

from npukit.migrate import journal
from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate
from npukit.report.writing import write_bytes

TIME_LIMIT = 900
TRANSFER = "import torch_npu\nfrom torch_npu.contrib import transfer_to_npu\n"
Way = Callable[[Path, Path, Script], None]


def migrated(style: Style) -> Way:
    def make(before: Path, after: Path, _: Script) -> None:
        journal.write_copy(migrate(before, Goal(style)), before, after)

    return make


def transfer_to_npu(before: Path, after: Path, script: Script) -> None:
    """As torch_npu's documentation has it: two imports below the script's `import torch`."""
    shutil.copytree(before, after, symlinks=True)
    words = script.command.split()
    path = after / (words[1].replace(".", "/") + ".py" if words[0] == "-m" else words[0])
    lines = path.read_text().splitlines(keepends=True)
    tree = ast.parse("".join(lines))
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    of_torch = [node for node in imports if re.search(r"\btorch\b", ast.unparse(node))]
    below = (of_torch or imports)[0].end_lineno or 0
    path.write_text("".join([*lines[:below], TRANSFER, *lines[below:]]))


def vendors_converter(tool: Path) -> Way:
    def make(before: Path, after: Path, _: Script) -> None:
        with tempfile.TemporaryDirectory() as output:
            command = ["bash", str(tool), "-i", str(before), "-o", output, "-v", "2.8.0"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
            made = list(Path(output).glob("*_msft*"))
            if not made:
                raise RuntimeError(f"no output: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
            shutil.copytree(made[0], after, symlinks=True)

    return make


def verified(before: Path, after: Path, script: Script, device: str) -> str:
    """What `npukit verify` says, in a few words."""
    command = [sys.executable, "-m", "npukit", "verify", str(before), str(after), "--json", "--device", device]
    command += ["--devices", str(script.devices), "--tolerance", str(script.tolerance)]
    arguments = script.command.split()
    if device == "cpu":
        arguments = [argument for argument in arguments if argument != script.not_on_cpu] + script.on_cpu.split()
    command += ["--", "python", *arguments]
    environment = {**os.environ, **dict(script.variables), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"more than {TIME_LIMIT} s"
    if process.returncode not in (0, 1) or not output.startswith("{"):
        return f"not run: {_last(errors)}"
    return _in_words(json.loads(output)["result"])


def _in_words(result: dict[str, Any]) -> str:
    if result["after"]["exit_code"]:
        return f"fails: {_last(result['after']['output'])}"
    if result["divergence"]:
        return f"{result['divergence']['kind']} differs at {result['divergence']['number']}"
    if not result["same"]:
        return "did not run on the NPU"
    compared = result["compared"]
    losses = [series for series in compared if series["kind"] in ("loss", "backward")]
    outputs = [series for series in compared if series["kind"] == "outputs"]  # of what only computes
    largest = max((series["largest_difference"] for series in losses or outputs), default=0.0)
    apart = f", {largest:.0e} apart" if largest else ""
    what = "" if losses else " outputs"
    return f"same ({sum(series['count'] for series in losses or outputs)}{what}{apart})"


def _last(text: str) -> str:
    """The line of an error that says what it was."""
    lines = [re.sub(r"^\[rank\d+\]:", "", line).strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception|Exit)\b.*", line)]
    return (errors or lines or ["nothing was said"])[-1][:110].replace("|", "/")


def packages_without_operators(packages: Path, work: Path) -> Path:
    """The packages as they can be imported here: torchvision without its compiled operators."""
    made = work / "packages"
    made.mkdir()
    for path in packages.resolve().iterdir():
        if path.name in ("torchvision", "timm"):
            shutil.copytree(path, made / path.name, ignore=shutil.ignore_patterns("*.so"))
        else:
            (made / path.name).symlink_to(path)
    for name in ("_meta_registrations.py", "_autograd_registrations.py"):
        (made / "torchvision" / name).write_text("")
    for path in (made / "timm").rglob("*.py"):
        text = path.read_text()
        if "from torch._six import container_abcs" in text:
            path.write_text(text.replace("from torch._six import", "from collections import abc as"))
    return made


def run_script(script: Script, checkout: Path, work: Path, ways: dict[str, tuple[Way, str]]) -> dict[str, str]:
    """What became of the script, by the way it was migrated."""
    home = work / re.sub(r"\W+", "_", script.name)
    shutil.rmtree(home, ignore_errors=True)
    before = home / "before"
    shutil.copytree(checkout / script.folder, before, ignore=shutil.ignore_patterns(".git"))
    if script.driver:
        shutil.copy(HERE / "drivers" / script.driver, before)
    for file, text, replacement in script.mend:
        path = before / file
        assert text in path.read_text(), f"{script.name}: {file} is not the one that is mended"
        path.write_text(path.read_text().replace(text, replacement))
    result: dict[str, str] = {}
    for name, (make, device) in ways.items():
        if device == "cpu" and script.needs_device:
            result[name] = f"— ({script.needs_device})"
            continue
        after = home / re.sub(r"\W+", "_", name)
        try:
            make(before, after, script)
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            result[name] = f"not migrated: {_last(str(error))}"
            continue
        with_data = home / "run" / "before"
        shutil.rmtree(home / "run", ignore_errors=True)
        for source, folder in ((before, with_data), (after, home / "run" / "after")):
            shutil.copytree(source, folder, symlinks=True)
            script.prepare(folder)
        result[name] = verified(with_data, home / "run" / "after", script, device)
        print(f"  {script.name}, {name}: {result[name]}", file=sys.stderr, flush=True)
    return result


def main(
    checkouts: tuple[Path, ...],
    packages: Path | None = None,
    vendor: Path | None = None,
    results: Path = Path("migrate_and_run.json"),
    only: Annotated[tuple[str, ...], "names of scripts: these are run again"] = (),
    ways: Annotated[tuple[str, ...], "columns: these alone are run"] = (),
) -> None:
    every: dict[str, tuple[Way, str]] = {
        "npu": (migrated(Style.npu), "sim"),
        "portable": (migrated(Style.portable), "sim"),
        "portable on CPU": (migrated(Style.portable), "cpu"),
        "transfer_to_npu": (transfer_to_npu, "sim"),
    }
    if vendor:
        every["vendor's converter"] = (vendors_converter(vendor.resolve()), "sim")
    known = json.loads(results.read_text()) if results.exists() else {}
    by_name = {path.name: path.resolve() for path in checkouts}
    with tempfile.TemporaryDirectory(prefix="npukit-scripts-") as folder:
        work = Path(folder)
        path = [str(HERE / "stand_in"), os.environ.get("PYTHONPATH", "")]
        if packages:
            path.insert(0, str(packages_without_operators(packages, work)))
        sys.path[1:1] = path[:2]
        for script in scripts():
            chosen = script.name in only or not only
            missing = {
                name: way
                for name, way in every.items()
                if (name in ways if ways else True) and (name not in known.get(script.name, {}) or script.name in only)
            }
            if chosen and missing and {script.checkout, script.imports or script.checkout} <= by_name.keys():
                first = [str(by_name[script.imports])] if script.imports else []
                os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*first, *path]))
                result = run_script(script, by_name[script.checkout], work, missing)
                known[script.name] = {**known.get(script.name, {}), **result}
                write_bytes(results, json.dumps(known, indent=1).encode())
    show(known, list(every))


def show(known: dict[str, dict[str, str]], ways: list[str]) -> None:
    print(f"| script | {' | '.join(ways)} |\n|---|{'---|' * len(ways)}")
    for script in scripts():
        if script.name in known:
            cells = [known[script.name].get(way, "") for way in ways]
            print(f"| {script.name} | {' | '.join(cells)} |")
    right = [n for n, w in known.items() if all(w.get(c, "").startswith("same") for c in ways[:3])]
    print(f"\n{len(right)} of {len(known)} scripts train in both styles, and portably on the CPU.")
