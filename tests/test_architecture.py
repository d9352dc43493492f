"""Who imports whom: the table in CONTRIBUTING.md is what holds."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
ROW = re.compile(r"^\| `(\w+)` \| .+ \| (.+) \|$", re.MULTILINE)
WITHOUT_TORCH = {"facts", "report", "source", "migrate", "doctor", "explain", "machine", "cli"}
FOR_ALL = {
    "errors",
    "cache",
    "children",
    "packages",
    "quiet",
    "spans",
    "__version__",
}  # the modules beside the packages
NOT_EVEN = {("npukit.inference", "npukit.llm.finetune"), ("npukit.inference", "npukit.llm.tasks")} | {
    ("npukit.llm.config", f"npukit.llm.{part}") for part in ("data", "models", "reading")
}  # parts of a package that may be imported otherwise


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def imports_of(file: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, at its top or inside of functions, with the line."""
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from ((name.name, node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((f"{node.module}.{name.name}", node.lineno) for name in node.names)


MODULES = {name_of(file): file for file in SOURCE.rglob("*.py")}
PACKAGES = {file.parent.name for file in (SOURCE / "npukit").glob("*/__init__.py")}
TABLE = {name: set(re.findall(r"`(\w+)`", may)) for name, may in ROW.findall((ROOT / "CONTRIBUTING.md").read_text())}


def module_of(name: str) -> str:
    """The module that an imported name is, or is in."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name


@pytest.fixture(scope="module")
def arrows() -> dict[str, set[str]]:
    """The modules that each module imports; `from package import name` is an import of the package."""
    imports: dict[str, set[str]] = {}
    for name, file in MODULES.items():
        imports[name] = {
            module for imported, _ in imports_of(file) if (module := module_of(imported)) not in ("", name)
        }
    return imports


def test_every_package_is_in_the_table() -> None:
    assert TABLE.keys() == PACKAGES


def test_packages_import_only_what_the_table_allows(arrows: dict[str, set[str]]) -> None:
    wrong = []
    for name, imported in arrows.items():
        package = name.split(".")[1] if name.count(".") else ""
        if package not in PACKAGES:
            continue
        allowed = TABLE[package] | {package} | ({"errors"} if package in ("facts", "source") else FOR_ALL)
        for other in imported - {"npukit"}:
            if other.split(".")[1] not in allowed and package != "cli":
                wrong.append(f"{name} imports {other}")
            if any(name.startswith(f"{by}.") and other.startswith(part) for by, part in NOT_EVEN):
                wrong.append(f"{name} imports {other}")
    assert not wrong


def test_the_simulator_is_reached_through_one_module_of_launch(arrows: dict[str, set[str]]) -> None:
    users = {
        name for name, imported in arrows.items() if any(other.startswith("npukit.simulate") for other in imported)
    }
    outside = {name for name in users if not name.startswith("npukit.simulate")}
    assert outside == {"npukit.launch.devices", "npukit.cli.sim"}


def test_packages_that_work_without_torch_never_import_it() -> None:
    wrong = []
    for name, file in MODULES.items():
        if name.count(".") and name.split(".")[1] in WITHOUT_TORCH:
            wrong += [f"{file}:{line}" for imported, line in imports_of(file) if imported.split(".")[0] == "torch"]
    assert not wrong


def lines_with(pattern: str, *outside: str) -> set[str]:
    """The modules in which a line matches, but for those of some packages."""
    match = {name for name, file in MODULES.items() if re.search(pattern, file.read_text(encoding="utf-8"))}
    return {name for name in match if not name.startswith(tuple(f"npukit.{package}" for package in outside))}


def test_one_module_tells_kinds_of_devices_apart() -> None:
    asked = lines_with(r"device\b[^\n]*\.type (==|!=|in|not in) ", "simulate", "migrate", "shim", "launch")
    # These two record what happens on which device: where a tensor is is their subject.
    assert asked <= {"npukit.performance.plan.observe", "npukit.verify.observe"}, "ask launch/abilities.py"


def test_nothing_but_a_task_knows_tasks_by_name() -> None:
    assert not lines_with(r"config\.task (==|!=|in|not in) ", "llm.tasks")


def test_no_rule_imports_another(arrows: dict[str, set[str]]) -> None:
    rules = {name: imported for name, imported in arrows.items() if name.startswith("npukit.migrate.rules.")}
    assert len(rules) > 20
    wrong = {name: imported & rules.keys() for name, imported in rules.items() if imported & rules.keys()}
    assert not wrong, "what rules share belongs to a module beside them"


def test_files_of_migrate_have_one_subject() -> None:
    beside = (file for name, file in MODULES.items() if name.startswith("npukit.migrate."))
    lines = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in beside}
    assert {name: number for name, number in lines.items() if number > 400} == {}


SAME_IDEA = {
    "Change": "report describes by a protocol what migrate makes",
    "Migration": "report describes by a protocol what migrate makes",
    "Guard": "the door of two servers",
    "Rule": "one rule, one file: of migrate, and of advise",
    "Style": "the option, and the class that writes in it",
    "Writer": "conversations as LLaMA-Factory and as ms-swift write them",
}
"""Public classes of one name in several modules, and why the name is right for each."""


def test_no_cache_of_migrate_outlives_the_files_it_is_about() -> None:
    cache = re.compile(r"@(?:lru_cache\(.*\)|cache)\ndef (\w+)\(([^)]*)\)")
    files = [file for folder in ("migrate", "source") for file in (SOURCE / "npukit" / folder).rglob("*.py")]
    cached = [match for file in files for match in cache.findall(file.read_text(encoding="utf-8"))]
    assert {name for name, given in cached if "Path" in given or "file: PythonFile" in given} == {"_above"}


def test_a_class_name_means_one_thing() -> None:
    modules = defaultdict(list)
    for file in MODULES.values():
        module = nodes_of(file)[0]
        assert isinstance(module, ast.Module)
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(file.relative_to(SOURCE)))
    shared = {name: files for name, files in modules.items() if len(files) > 1}
    assert shared.keys() == SAME_IDEA.keys(), {name: shared.get(name) for name in shared.keys() ^ SAME_IDEA.keys()}


VAGUE = {"each": 15, "found": 12, "named": 8, "told": 0, "said": 0}
"""Names that say nothing of what they are, and how often they may be bound: lower a bound, never raise it."""


def test_vague_names_do_not_spread() -> None:
    bound: dict[str, list[str]] = defaultdict(list)
    for file in MODULES.values():
        for node in nodes_of(file):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE:
                bound[node.id].append(f"{file.relative_to(SOURCE)}:{node.lineno}")
            elif isinstance(node, ast.arg) and node.arg in VAGUE:
                bound[node.arg].append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert {name: places for name, places in bound.items() if len(places) > VAGUE[name]} == {}


def test_there_are_no_circles_between_packages(arrows: dict[str, set[str]]) -> None:
    packages: dict[str, set[str]] = defaultdict(set)
    for name, imported in arrows.items():
        both = [(name.split(".")[1], other.split(".")[1]) for other in imported if name.count(".") and other.count(".")]
        for package, other in both:
            packages[package] |= {other} - {package}
    no_circle(packages)


def test_there_are_no_circles_between_files(arrows: dict[str, set[str]]) -> None:
    # A package's __init__ gathers names of its modules, which is no arrow back.
    inner = {
        name: {other for other in imported if not name.startswith(f"{other}.")} for name, imported in arrows.items()
    }
    no_circle(inner)


def test_there_are_no_circles_between_the_simulators_c_files() -> None:
    texts = {file.name: file.read_text() for file in (SOURCE / "npukit/simulate/cann").rglob("*.c")}
    definition = re.compile(r"^(?!static|typedef|struct|#)[A-Za-z_][\w *]*?\b(\w+)\([^;{}]*\) \{$", re.MULTILINE)
    home = {name: file for file, text in texts.items() for name in definition.findall(text)}
    assert len(home) > 200
    calls = {
        file: {home[name] for name in re.findall(r"\b(\w+)\(", text) if name in home} for file, text in texts.items()
    }
    no_circle({file: called - {file} for file, called in calls.items()})


def no_circle(graph: dict[str, set[str]]) -> None:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
