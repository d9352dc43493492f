"""Migrate checkouts of other people's projects and count what must not happen.

python -m benchmarks migrate_corpus DIR... [--style npu] [--imports] [--vendor PATH]

A row a project and tool: lines, files, files touched, places rewritten and left, files that parsed before and do not
after (with --imports: or imported, on the CPU or on a simulated NPU, and do not; how many did is on standard error),
files that a second run changes, files touched without a CUDA reference, uses of torch.cuda and .cuda() in code before
and after, CPU seconds (the least of five turns where they are few), lines per CPU-second. The last column is that
against the vendor's converter: as measured beside with --vendor, else against the 80 lines per CPU-second that it was
measured at.

--vendor: pytorch_gpu2npu.sh of msTransplant, Ascend's converter; `python3` must find pandas, libcst, prettytable, jedi.
"""

from __future__ import annotations

import ast
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated

from npukit.launch.devices import choose
from npukit.migrate import journal
from npukit.migrate.goal import Goal, Style
from npukit.migrate.migration import migrate
from npukit.port.imports import import_all
from npukit.source import find, names

VENDOR_LINES_PER_SECOND = 80
QUICK_TURNS = 4  # what takes less than a second is timed so often again; other work on the machine disturbs
_REFERENCE = re.compile(r"cuda|nccl|apex|is_autocast_enabled|autocast_gpu|GradScaler", re.IGNORECASE)
_ABOUT_CUDA = ("NPK1", "NPK712")  # rules that rewrite; migrate reports all that analyze finds
_STAND_IN = re.compile(r"""\w+\.npu\s+if hasattr\(\w+, ["']npu["']\)\s+else \w+\.cuda""")
Tool = Callable[[Path, Path], tuple[int, int]]  # source, output -> places rewritten and left


@dataclass(frozen=True)
class Counts:
    lines: int
    files: int
    touched: int
    places: int
    left: int
    broken: int
    again: int
    needless: int
    before: int
    after: int


def npukit(style: Style) -> Tool:
    def run(source: Path, output: Path) -> tuple[int, int]:
        names.exported.cache_clear()  # as in a process of its own
        names.names_of.cache_clear()
        result = migrate(source, Goal(style))
        journal.write_copy(result, source, output)
        return len(result.fixed), sum(finding.code.startswith(_ABOUT_CUDA) for finding in result.by_hand)

    return run


def vendors_converter(script: Path) -> Tool:
    def run(source: Path, output: Path) -> tuple[int, int]:
        with tempfile.TemporaryDirectory() as folder:
            command = ["bash", str(script), "-i", str(source), "-o", folder, "-v", "2.8.0"]
            done = subprocess.run(command, capture_output=True, text=True)
            made = list(Path(folder).glob("*_msft*"))
            if not made:
                raise RuntimeError((done.stdout + done.stderr).strip().splitlines()[-1])
            shutil.move(made[0], output)
        tables = {path.stem: len(path.read_text().splitlines()) - 1 for path in output.rglob("*.csv")}
        return tables.get("change_list", 0), tables.get("unsupported_api", 0)

    return run


def parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def uses_of_cuda(text: str) -> int:
    """How often code says torch.cuda or calls .cuda(), but for torch.npu's stand-in, which migrate writes."""
    text = _STAND_IN.sub("None", text)
    nodes = list(ast.walk(tree)) if "cuda" in text and (tree := parsed(text)) else []
    called = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "cuda"]
    named = (node for node in nodes if isinstance(node, ast.Attribute) and node.attr == "cuda")
    return len(called) + sum(isinstance(node.value, ast.Name) and node.value.id in ("torch", "th") for node in named)


def cpu_seconds() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed(tool: Tool, source: Path, output: Path) -> tuple[float, tuple[int, int]]:
    start = cpu_seconds()
    result = tool(source, output)
    return cpu_seconds() - start, result


def changed(before: Path, after: Path) -> list[tuple[Path, str, str]]:
    """The files that differ, with their texts."""
    files = []
    for path in find([before]):
        other = after / path.relative_to(before)
        if other.is_file() and path.read_bytes() != other.read_bytes():
            files.append((path, path.read_text(errors="replace"), other.read_text(errors="replace")))
    return files


def no_longer_import(before: Path, after: Path, files: list[str]) -> set[str]:
    """The files that imported, on the CPU or on a simulated NPU, and do not any more."""
    broken = set()
    for devices in (choose("cpu"), choose("sim")):
        was = import_all(before, dict.fromkeys(files, ()), devices)
        now = import_all(after, {file: answer.stand_ins for file, answer in was.items()}, devices)
        worked = {file for file, answer in was.items() if answer.outcome in ("imports", "runs")}
        lost = {file for file in worked if now[file].outcome not in ("imports", "runs")}
        print(
            f"{after.name} on {devices}: {len(worked)} of {len(files)} touched files import before, "
            f"{len(worked) - len(lost)} of these after",
            file=sys.stderr,
            flush=True,
        )
        for file in sorted(lost):
            print(f"{after.name}/{file} on {devices}: {now[file].error}", file=sys.stderr)
        broken |= lost
    return broken


def measured(folder: Path, tool: Tool, imports: bool) -> tuple[Counts, float]:
    with tempfile.TemporaryDirectory() as temporary:
        once, twice = Path(temporary, folder.name), Path(temporary, "again", folder.name)
        twice.parent.mkdir()
        seconds, (places, left) = timed(tool, folder, once)
        for turn in range(QUICK_TURNS if seconds < 1 else 0):
            seconds = min(seconds, timed(tool, folder, Path(temporary, f"turn{turn}"))[0])
        shutil.rmtree(once / "transplant_result_file", ignore_errors=True)
        tool(once, twice)
        files = list(find([folder]))
        differing = changed(folder, once)
        python = [path for path in files if path.suffix == ".py"]
        broken = {path for path, a, b in differing if path.suffix == ".py" and parsed(a) and not parsed(b)}
        if imports:
            touched = [path.relative_to(folder).as_posix() for path, _, _ in differing if path.suffix == ".py"]
            broken |= {folder / file for file in no_longer_import(folder, once, touched)}
        counts = Counts(
            lines=sum(path.read_bytes().count(b"\n") + 1 for path in files if path.is_file()),
            files=len(files),
            touched=len(differing),
            places=places,
            left=left,
            broken=len(broken),
            again=len(changed(once, twice)),
            needless=sum(not _REFERENCE.search(text) for _, text, _ in differing),
            before=sum(uses_of_cuda(path.read_text(errors="replace")) for path in python),
            after=sum(uses_of_cuda((once / path.relative_to(folder)).read_text(errors="replace")) for path in python),
        )
        return counts, seconds


def show(name: str, counts: Counts, seconds: float, speed_of_vendor: float | None) -> None:
    speed = counts.lines / seconds
    figures = [*(f"{count:,}" for count in astuple(counts)), f"{seconds:.2f}", f"{speed:,.0f}"]
    factor = f"{speed / speed_of_vendor:,.0f}x" if speed_of_vendor else ""
    print(f"| {name} | {' | '.join(figures)} | {factor} |", flush=True)


def total(rows: list[tuple[Counts, float]]) -> tuple[Counts, float]:
    columns = zip(*(astuple(counts) for counts, _ in rows), strict=True)
    return Counts(*(sum(column) for column in columns)), sum(seconds for _, seconds in rows)


def main(
    folders: tuple[Path, ...],
    style: Annotated[str, [style.value for style in Style]] = "portable",
    imports: Annotated[bool, "import every touched file before and after"] = False,
    vendor: Path | None = None,
) -> None:
    names = ["project", *Counts.__dataclass_fields__, "CPU s", "lines/s", "vendor"]
    print(f"| {' | '.join(names)} |\n|---|{'---:|' * (len(names) - 1)}")
    ours: list[tuple[Counts, float]] = []
    theirs: list[tuple[Counts, float]] = []
    for folder in folders:
        ours.append(measured(folder.resolve(), npukit(Style(style)), imports))
        speed: float = VENDOR_LINES_PER_SECOND
        if vendor:
            try:
                theirs.append(measured(folder.resolve(), vendors_converter(vendor.resolve()), imports))
                speed = theirs[-1][0].lines / theirs[-1][1]
                show(f"{folder.name}, vendor", *theirs[-1], None)
            except RuntimeError as error:
                print(f"| {folder.name}, vendor | {error} |")
        show(folder.name, *ours[-1], speed)
    if theirs:
        show("all, vendor", *total(theirs), None)
    show("all", *total(ours), total(theirs)[0].lines / total(theirs)[1] if theirs else VENDOR_LINES_PER_SECOND)
