"""Every verb where only npukit's base, or base and one extra, is installed.

An environment of links to the packages of this one holds what pyproject.toml asks for, what those packages ask for,
and nothing else; so a new dependency is covered by itself.
"""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npukit import packages
from npukit.cli.verbs import VERBS, Verb
from npukit.errors import NpukitError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = {
    name: packages for name, packages in PROJECT["optional-dependencies"].items() if name != "dev"
}
EVERY = [verb for group in VERBS.values() for verb in group]
# What npukit imports only where a card, an option or another project's library calls for it.
ON_OCCASION = {"torch_npu", "triton", "deepspeed", "modelscope", "pytest", "math_verify", "latex2sympy2_extended"}
# With their extra; the others need no more than these.
TRIED = ("train", "infer", "export", "profile", "precision", "sim", "serve", "studio")
HELP = """
import sys
from npukit.cli import main
for verb in {verbs}:
    sys.argv = ["npukit", verb, "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, verb
"""
CONFIG = """
model: {{path: {model}}}
data: {{train: [{rows}]}}
training: {{max_steps: 1, output: {folder}/run}}
"""


@dataclass(frozen=True)
class Use:
    """A first use of a verb, and where it must work; elsewhere it must say what to install."""

    verb: str
    words: str
    works_with: str = "base"
    codes: tuple[int, ...] = (0,)
    stdin: str = ""
    serves: bool = False  # until it is told to end

    def run(self, python: Path, places: dict[str, object]) -> subprocess.CompletedProcess[str]:
        """Use the verb in the environment of this Python; a server is told to end when it says where it listens."""
        command = [str(python), "-m", "npukit", self.verb, *self.words.format(**places).split()]
        return _served(command) if self.serves else _run(command, self.stdin)


USES = [
    Use("doctor", "", codes=(0, 1)),
    Use("analyze", "{folder}/script.py", codes=(0, 1)),
    Use("migrate", "{folder}/script.py"),
    Use("run", "--device cpu {folder}/script.py"),
    Use("launch", "--device cpu --devices 2 {folder}/script.py", "sim"),
    Use("container", "--help"),
    Use("devices", ""),
    Use("plan", "{config}"),
    Use("init", "{folder}/new.yaml --model {model} --data {rows} --devices 1"),
    Use("train", "--explain"),
    Use("train", "{config} --dry-run"),
    Use("train", "{config} --device cpu", "train"),
    Use("sft", "--model {model} --dataset {rows} --max_steps 1 --output_dir {folder}/sft --device cpu --dry-run"),
    Use("pt", "--explain"),
    Use("rlhf", "--explain"),
    Use("rewards", "format --data {rows}"),
    Use("tune", "{config} --device cpu --max-steps 3 --trials {folder}/trials", "train"),
    Use("new", "{folder}/project"),
    Use("chat", "{model} --device cpu --max-new-tokens 2", "use", stdin="Hi\n"),
    Use("infer", "{model} {rows} --output {folder}/answers.jsonl --device cpu --max-new-tokens 2", "use"),
    Use("eval", "{model} {folder}/text.txt --device cpu", "use"),
    Use("export", "{model} --output {folder}/merged", "use"),
    Use("serve", "{model} --device cpu --port 0", "serve", serves=True),
    Use("profile", "--device cpu --steps 0 --output {folder}/profile {folder}/training.py", "sim"),
    Use("explain", "507015"),
    Use("advise", "{folder}/none", codes=(2,)),
    Use("precision", "weights {model} {model}", "sim"),
    Use("sim", "info", "sim"),
    Use("verify", "{folder}/cuda {folder}/npu -- python train.py", "sim"),
    Use("port", "--help"),
    Use("studio", "{folder} --port 0", "studio", serves=True),
    Use("selftest", "--device cpu --group formulas --output {folder}/selftest.json", "train"),
    Use("report", "--output {folder}/report.json"),
    Use("schema", "--help"),
    Use("docs", ""),
    Use("skill", ""),
    Use("mcp", "{folder}", "mcp"),
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Python of an environment with npukit's base and one extra."""
    made: dict[str, Path] = {}

    def environment(extra: str) -> Path:
        if extra not in made:
            made[extra] = _new_environment(tmp_path_factory.mktemp(extra), extra)
        return made[extra]

    return environment


def _new_environment(folder: Path, extra: str) -> Path:
    python = Path(os.path.realpath(sys.executable))
    packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(python)
    (folder / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    for distribution in _needed([*PROJECT["dependencies"], *EXTRAS.get(extra, ())]):
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(distribution.locate_file(name))
    (packages / "npukit.pth").write_text(str(ROOT / "src"))
    wanted = [f'{requirement} ; extra == "{name}"' for name, every in EXTRAS.items() for requirement in every]
    requires = "".join(f"Requires-Dist: {dependency}\n" for dependency in [*PROJECT["dependencies"], *wanted])
    (packages / "npukit-1.dist-info").mkdir()
    (packages / "npukit-1.dist-info" / "METADATA").write_text(f"Name: npukit\nVersion: 1\n{requires}")
    return folder / "bin" / "python"


def _needed(wanted: list[str]) -> Iterator[importlib.metadata.Distribution]:
    """The distributions that these requirements install."""
    open_ones = [(Requirement(requirement), "") for requirement in wanted]
    seen = set()
    while open_ones:
        requirement, extra = open_ones.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                distribution = importlib.metadata.distribution(name)
                yield distribution
                open_ones += [(Requirement(requirement), extra) for requirement in distribution.requires or ()]


def _run(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=_variables(), input=stdin, capture_output=True, text=True)


def _served(command: list[str]) -> subprocess.CompletedProcess[str]:
    server = subprocess.Popen(command, env=_variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert server.stdout is not None
    log = ""
    for line in server.stdout:
        log += line
        if "http://" in line:
            server.terminate()
    return subprocess.CompletedProcess(command, server.wait(), "", log)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def show_every_help(python: Path) -> subprocess.CompletedProcess[str]:
    return _run([str(python), "-c", HELP.format(verbs=[verb.name for verb in EVERY])])


@pytest.mark.parametrize("extra", ["base", *EXTRAS])
def test_every_verb_has_help(extra: str, installed: Callable[[str], Path]) -> None:
    result = show_every_help(installed(extra))
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("Usage: npukit") == len(EVERY)


def test_every_verb_is_used() -> None:
    assert {use.verb for use in USES} == {verb.name for verb in EVERY}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, tiny_qwen2: Path) -> dict[str, object]:
    return write_places(tmp_path_factory.mktemp("user"), tiny_qwen2)


def write_places(folder: Path, model: Path) -> dict[str, object]:
    """What a user has: scripts, a text, rows and a configuration; the uses name them."""
    (folder / "script.py").write_text("print('loss: 1.0')\n")
    (folder / "training.py").write_text(
        "import torch\nweight = torch.ones(2, requires_grad=True)\noptimizer = torch.optim.SGD([weight])\n"
        "for _ in range(2):\n    weight.sum().backward()\n    optimizer.step()\n"
    )
    for device in ("cuda", "npu"):
        (folder / device).mkdir()
        (folder / device / "train.py").write_text(
            f"import torch\nprint('loss:', torch.ones(2, device='{device}').sum().item())\n"
        )
    (folder / "text.txt").write_text("The sky is blue. " * 9)
    (folder / "rows.jsonl").write_text('{"instruction": "Why?", "output": "Because light is scattered."}\n' * 4)
    config = folder / "train.yaml"
    config.write_text(CONFIG.format(model=model, rows=folder / "rows.jsonl", folder=folder))
    return {"folder": folder, "model": model, "rows": folder / "rows.jsonl", "config": config}


@pytest.mark.parametrize("use", USES, ids=lambda use: f"{use.verb} {use.words.partition(' ')[0]}".strip())
def test_the_base_alone_does_it_or_names_the_extra(
    use: Use, installed: Callable[[str], Path], places: dict[str, object]
) -> None:
    result = use.run(installed("base"), places)
    if use.works_with == "base":
        assert result.returncode in use.codes, result.stderr
    else:
        verb: Verb = next(verb for verb in EVERY if verb.name == use.verb)
        assert result.returncode == 2, result.stderr
        assert len(result.stderr.splitlines()) == 1
        assert re.findall(r"pip install 'npukit\[(\w+)\]", result.stderr) == [verb.extra]


@pytest.mark.parametrize(
    "use",
    [use for use in USES if use.works_with != "base" and use.verb in TRIED],
    ids=lambda use: f"{use.verb} {use.works_with}",
)
def test_an_extra_brings_what_its_verbs_need(
    use: Use, installed: Callable[[str], Path], places: dict[str, object]
) -> None:
    result = use.run(installed(use.works_with), places)
    assert result.returncode in use.codes, result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        "run --device cpu {folder}/training.py",
        "precision capture --device cpu --output {folder}/dump -- python {folder}/training.py",
        "precision check --device cpu -- {folder}/training.py",
        "plan -- python {folder}/training.py",
        "plan {config} --walk",
    ],
)
def test_a_script_without_torch_is_told_what_to_install(
    words: str, installed: Callable[[str], Path], places: dict[str, object]
) -> None:
    verb, _, rest = words.partition(" ")
    result = Use(verb, rest).run(installed("base"), places)
    assert result.returncode == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert "pip install 'npukit[" in result.stderr


def test_a_package_of_a_script_keeps_its_traceback(installed: Callable[[str], Path], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import no_such_package\n")
    result = Use("run", "--device cpu {script}").run(installed("base"), {"script": script})
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_every_package_that_is_imported_is_declared() -> None:
    """So that none is there by chance, because another one happens to need it."""
    declared = {Requirement(dependency).name.lower().replace("-", "_") for dependency in PROJECT["dependencies"]}
    declared |= {
        Requirement(requirement).name.lower().replace("-", "_") for every in EXTRAS.values() for requirement in every
    }
    known = (
        declared | ON_OCCASION | {"npukit", "yaml", "PIL", "annotated_types", "pydantic_core"} | sys.stdlib_module_names
    )
    imported = {
        (name.partition(".")[0], str(file.relative_to(ROOT)))
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        for name in _names(node)
    }
    assert {place for place in imported if place[0] not in known} == set()


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def test_sources_that_were_never_installed_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on PYTHONPATH, where no metadata says which extra brings a package."""

    def nowhere(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", nowhere)
    packages.extras.cache_clear()
    packages.require("yaml")
    with pytest.raises(NpukitError, match="pip install no-such-package"):
        packages.require("no_such_package")
    packages.extras.cache_clear()


def test_the_extra_that_brings_least_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    brought = {"serve": {"numpy": "", "uvicorn": ""}, "sim": {"numpy": ""}}
    monkeypatch.setattr(packages, "extras", lambda: brought)
    assert packages.not_installed(["numpy"]).remedy == "pip install 'npukit[sim]'"
    assert packages.not_installed(["numpy"], extra="serve").remedy == "pip install 'npukit[serve]'"
