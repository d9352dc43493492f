"""Run a benchmark, list them all, or write the table in README.md.

    python -m benchmarks list
    python -m benchmarks NAME [--quick] [ARGUMENTS...]      NAME --help shows what a benchmark takes
    python -m benchmarks table

--quick adds the arguments of claims.yaml that make the run as short as possible. Other arguments are the parameters of
the benchmark's function `main`, or of the function that COMMANDS has for the first of them.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import os
import shlex
import subprocess
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from benchmarks import ROOT

FOLDERS = {
    "speed": "Time, memory and throughput, beside a named peer where there is one",
    "agreement": "The same numbers or verdicts as a reference",
    "robustness": "Faults, kills, damaged and hostile input",
    "corpora": "Other people's projects, tests, examples and messages",
}
README = ROOT / "benchmarks" / "README.md"
HEAD = """# Benchmarks

One script per claim. `python -m benchmarks NAME` runs one, with `--quick` as briefly as possible; `--help` shows its
options. [results/](results/README.md) describes the results. Nothing was measured on an Ascend card. `python -m
benchmarks table` writes this page from claims.yaml.
"""


@dataclass(frozen=True)
class Benchmark:
    """A row of claims.yaml.

    `name`: of the script, and of its subcommand if it has some. `arguments`: what the command of the last result had,
    `quick`: what makes it short, `needs`: what the development environment lacks, `measured`: date and machine of
    `result`, `page`: where results/ describes it.
    """

    name: str
    folder: str
    claim: str
    duration: str
    result: str = ""
    measured: str = ""
    page: str = ""
    arguments: str = ""
    quick: str = ""
    needs: str = ""

    @property
    def script(self) -> Path:
        """The file that is run.

        >>> benchmarks()["startup"].script.name
        'startup.py'
        """
        path = ROOT / "benchmarks" / self.folder / self.name.split()[0]
        return next(path.with_suffix(suffix) for suffix in (".py", ".sh") if path.with_suffix(suffix).exists())

    def run(self, arguments: list[str]) -> int:
        """Run its script with these arguments; returns the exit code."""
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        wants_help = not {"-h", "--help"}.isdisjoint(arguments)
        if self.script.suffix == ".sh":
            if wants_help:
                print(self.script.read_text(encoding="utf-8").split("\nset -", 1)[0])
                return 0
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
            variables = {**os.environ, "PATH": path, "PYTHON": sys.executable}
            return subprocess.run(["bash", str(self.script), *arguments], env=variables).returncode
        try:
            return self._run_module(arguments, wants_help)
        except ModuleNotFoundError as error:
            if not self.needs or str(error.name).startswith(("benchmarks", "npukit", "tests")):
                raise
            print(f"{ast.get_docstring(ast.parse(self.script.read_text(encoding='utf-8')))}\n")
            print(f"It needs {self.needs}: there is no module {error.name} here.", file=sys.stderr)
            return 0 if wants_help else 2
        except (AssertionError, RuntimeError):
            if not self.needs.startswith("a GPU") or has_gpu():
                raise
            print(f"It needs {self.needs}: torch finds no CUDA device here.", file=sys.stderr)
            return 2

    def _run_module(self, arguments: list[str], wants_help: bool) -> int:
        sys.argv = [str(self.script), *arguments]
        module = importlib.import_module(f"benchmarks.{self.folder}.{self.script.stem}")
        commands = getattr(module, "COMMANDS", {})
        if commands and (not arguments or arguments[0] not in commands):
            print(f"{module.__doc__}\nThe first argument is one of {', '.join(commands)}.")
            return 0 if wants_help else 2
        function = commands[arguments.pop(0)] if commands else module.main
        reads_arguments = inspect.signature(function).parameters or hasattr(module, "argparse")
        if wants_help and not reads_arguments:
            print(module.__doc__)
            return 0
        return int(call(function, module.__doc__ or "", arguments) or 0)


def has_gpu() -> bool:
    """Whether torch can compute on CUDA here."""
    import torch

    return torch.cuda.is_available()


def call(function: Callable[..., Any], description: str, arguments: list[str]) -> Any:
    """Call a function with what a command line says about its parameters.

    A parameter without a default is a positional argument, unless it is keyword-only; the others are options. A tuple
    takes several words. `Annotated[str, SHAPES, "of the model"]` adds the words that may be chosen, and a help text.

    >>> call(lambda steps=3: steps, "", ["--steps", "5"])
    """
    if not (parameters := inspect.signature(function).parameters):
        return function()
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    hints = typing.get_type_hints(function, include_extras=True)
    for name, parameter in parameters.items():
        is_option = parameter.default is not parameter.empty or parameter.kind is parameter.KEYWORD_ONLY
        flag = f"--{name.replace('_', '-')}" if is_option else name
        settings = _settings(hints[name])
        if parameter.default is not parameter.empty:
            settings["default"] = parameter.default
        elif is_option:
            settings["required"] = True
        parser.add_argument(flag, **settings)
    parsed = vars(parser.parse_args(arguments))
    return function(**{name: tuple(value) if isinstance(value, list) else value for name, value in parsed.items()})


def _settings(hint: Any) -> dict[str, Any]:
    """What argparse is told about a parameter of this type."""
    kind, *more = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    settings: dict[str, Any] = {}
    for item in more:
        settings["help" if isinstance(item, str) else "choices"] = item
    if kind is bool:
        return {**settings, "action": "store_true"}
    if typing.get_origin(kind) is tuple:
        settings["nargs"] = "*"
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is Literal:
        return {**settings, "choices": typing.get_args(kind)}
    return {**settings, "type": kind}


def benchmarks() -> dict[str, Benchmark]:
    """Every benchmark by name."""
    rows = yaml.safe_load((ROOT / "benchmarks" / "claims.yaml").read_text(encoding="utf-8"))
    return {name: Benchmark(name, folder, **row) for folder in FOLDERS for name, row in rows[folder].items()}


def table() -> str:
    """README.md, from claims.yaml."""
    parts = [HEAD]
    for folder, title in FOLDERS.items():
        parts.append(
            f"## {folder}\n\n{title}.\n\n| claim | command | needs | takes | last result | measured |\n{'|---' * 6}|"
        )
        parts += [_row(row) for row in benchmarks().values() if row.folder == folder]
        parts.append("")
    return "\n".join(parts)


def _row(row: Benchmark) -> str:
    command = f"`python -m benchmarks {row.name}{f' {row.arguments}' if row.arguments else ''}`"
    result = f"[{row.result}](results/{row.page})" if row.page else row.result
    return f"| {row.claim} | {command} | {row.needs} | {row.duration} | {result} | {row.measured} |"


def main() -> int:
    """The command line."""
    known = benchmarks()
    name, *arguments = sys.argv[1:] or ["list"]
    if name == "list":
        for row in known.values():
            print(f"{row.folder:<11} {row.name:<21} {row.claim}")
        return 0
    if name == "table":
        README.write_text(table(), encoding="utf-8")
        return 0
    rows = [row for row in known.values() if row.script.stem == name]
    if not rows:
        print(f"benchmarks: there is no {name!r}; `python -m benchmarks list` shows them all", file=sys.stderr)
        return 2
    if "--quick" in arguments:
        arguments.remove("--quick")
        row = known.get(" ".join([name, *arguments[:1]]), rows[0])
        words = row.name.split()[1:]
        arguments = [*words, *arguments[len(words) :], *shlex.split(row.quick)]
    return rows[0].run(arguments)


if __name__ == "__main__":
    sys.exit(main())
