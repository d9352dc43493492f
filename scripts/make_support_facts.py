"""Make the facts about one version of torch_npu: its column in the tables of src/npukit/facts/torch_npu.

    python scripts/make_support_facts.py 2.13 --docs PYTORCH/docs/zh/api/native_api/pytorch_2-13-0 \
        --names torch_npu-2.13.0-….whl torch-2.13.0-….whl --op-plugin OP_PLUGIN/op_plugin/config [--dispatcher]

Sources: the documentation tables of github.com/Ascend/pytorch (apis.csv), the published wheels (names.csv), the
operator list of github.com/Ascend/op-plugin (own_operators.csv) and, with --dispatcher, the
dispatcher of the installed torch_npu on the simulated runtime (operators.csv).
Names, types and statuses are taken over as facts; the wording of limits is reduced to our own short form.
"""

# ruff: noqa: RUF001 (the documentation is Chinese)
from __future__ import annotations

import argparse
import ast
import csv
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import yaml
from version_table import write_version

FACTS = Path(__file__).parent.parent / "src" / "npukit" / "facts" / "torch_npu"
SERIES = {"A2": "Atlas A2 训练系列产品", "A3": "Atlas A3 训练系列产品", "950": "Ascend 950DT"}
DTYPES = re.compile(r"bf16|fp(16|32|64)|uint(8|16)|int(8|16|32|64)|bool|complex(32|64|128)")

# What the dispatcher of the running torch has for every aten overload.
DISPATCHER = """
import torch, torch_npu
npu = set(torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"))
keys = {"CompositeImplicitAutograd": "composite", "CompositeExplicitAutograd": "composite",
        "CompositeExplicitAutogradNonFunctional": "through_out", "CPU": "cpu"}
for name in sorted(torch._C._dispatch_get_all_op_names()):
    if name.startswith("aten::"):
        found = [k for key, k in keys.items() if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
        print("OP", name.removeprefix("aten::"), "npu" if name in npu else found[0] if found else "none")
"""


def documented(folder: Path) -> Iterator[list[str]]:
    """(api, A2, A3, 950, limits) of every API in the documentation's tables."""
    for page in sorted(folder.glob("*.md")):
        parts = re.split(r"\*\*原生文档\*\*[:：]\s*\[([^\]]+)\]", page.read_text(encoding="utf-8"))
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            name = name.replace("\\", "")
            name = f"torch.{name}" if name.startswith("Tensor.") else name
            if not name.startswith("torch."):
                continue  # a method of a class that is named elsewhere
            table = dict(re.findall(r"<term>([^<]*)</term> \| (\S)", body))
            limits = list(dict.fromkeys(_limits(body)))
            yes = "cpu_fallback" if "cpu_fallback" in limits else "limited" if limits else "yes"
            status = [{"✔": yes, "✘": "no"}.get(table.get(series, ""), "unknown") for series in SERIES.values()]
            yield [name, *status, " ".join(each for each in limits if each != "cpu_fallback")]


def _limits(body: str) -> Iterator[str]:
    match = re.search(r"\*\*限制与说明\*\*[:：](.*?)(?:</div>|<font size|^#|```)", body, re.S | re.M)
    for line in match[1].splitlines() if match else ():
        line = line.strip(" >-")
        if not line:
            continue
        types = re.fullmatch(r"`(\w+)`仅支持(?:输出)?([\w，、]+)", line)
        refused = re.fullmatch(r"不支持`(\w+)`参数", line)
        if types and all(DTYPES.fullmatch(each) for each in re.split("[，、]", types[2])):
            yield f"{types[1]}:{'|'.join(re.split('[，、]', types[2]))}"
        elif refused:
            yield f"without:{refused[1]}"
        elif "回退" in line:
            yield "cpu_fallback"
        elif "仅支持推理" in line:
            yield "inference_only"
        else:
            yield "see_docs"


def own_ops(config: Path) -> Iterator[tuple[str, str, str, str]]:
    """(op, first version, last version or empty, instead or empty) of torch_npu's own ops; "-" where none is named."""
    data = yaml.safe_load((config / "op_plugin_functions.yaml").read_text(encoding="utf-8"))
    rows = yaml.safe_load((config / "deprecated.yaml").read_text(encoding="utf-8"))["deprecated"]
    deprecated = {row["name"].split(".")[0]: row.get("replace", "-") for row in rows}
    versions: list[str] = data["all_version"]
    spans: dict[str, set[str]] = {}
    for row in data["custom"]:
        name = row["func"].split("(")[0].split(".")[0]
        for field in ("acl_op", "op_api", "sparse"):
            spans.setdefault(name, set()).update(_versions(row.get(field), versions))
    for name, span in sorted(spans.items()):
        if span:
            last = max(span, key=versions.index)
            first = min(span, key=versions.index)[1:]
            yield name, first, "" if last == versions[-1] else last[1:], deprecated.get(name, "")


def _versions(field: object, known: list[str]) -> list[str]:
    if field == "all_version":
        return known
    if isinstance(field, list):
        first, last = field[0], known[-1] if field[-1] == "newest" else field[-1]
        return known[known.index(first) : known.index(last) + 1] if first in known and last in known else []
    return [each.strip() for each in str(field or "").split(",") if each.strip() in known]


def dispatched() -> dict[str, str]:
    """What runs an aten op on an NPU: the best of its overloads among npu, composite, cpu and none.

    A generated functional overload only calls its out overload, and a generated out overload its functional one:
    the kernel behind them is what counts.
    """
    from npukit.simulate import environment

    command = [sys.executable, "-c", DISPATCHER]
    out = subprocess.run(command, env=environment(1), capture_output=True, text=True, check=True)
    order = ["npu", "composite", "cpu", "none", "through_out"]
    functional: dict[str, str] = {}
    outs: dict[str, str] = {}
    for line in out.stdout.splitlines():
        if line.startswith("OP "):
            _, overload, kind = line.split()
            name, _, variant = overload.partition(".")
            table = outs if variant.endswith("out") else functional
            table[name] = min(kind, table.get(name, kind), key=order.index)
    behind = {name: outs.get(name.removesuffix("_"), "none") for name in functional}
    return {name: behind[name] if kind == "through_out" else kind for name, kind in functional.items()}


def names(torch_npu: Path, torch: Path) -> dict[str, list[str]]:
    """The public names of torch.npu, torch.accelerator and torch.cpu, read from wheels or installed packages."""
    return {
        "npu": sorted(_public(_tree(torch_npu) / "torch_npu" / "npu")),
        "accelerator": sorted(_public(_tree(torch) / "torch" / "accelerator")),
        "cpu": sorted(_public(_tree(torch) / "torch" / "cpu")),
    }


def _tree(path: Path) -> Path:
    """A folder, or the inside of a wheel, which has the same methods."""
    return path if path.is_dir() else zipfile.Path(path)  # type: ignore[return-value]


def _public(package: Path) -> set[str]:
    """What a package defines, exports or imports from torch, and its submodules; nothing if it does not exist yet."""
    if not (package / "__init__.py").exists():
        return set()
    found = {each.name.removesuffix(".py") for each in package.iterdir() if each.is_dir() or each.name.endswith(".py")}
    for node in _body(package / "__init__.py"):
        found |= _bound(node)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            module = package / (node.module or "")
            file = package / f"{node.module}.py"
            found |= _exported(file if file.exists() else module / "__init__.py")
    found |= _exported(package / "__init__.py")
    return {name for name in found if not name.startswith("_") and name != "*"}


def _body(file: Path) -> list[ast.stmt]:
    return ast.parse(file.read_text(encoding="utf-8")).body


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return {target.id for target in targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("torch")):
        return {alias.asname or alias.name for alias in node.names}
    return set()


def _exported(file: Path) -> set[str]:
    """What a star imports of a module."""
    body = _body(file)
    for node in body:
        if isinstance(node, ast.Assign) and _bound(node) == {"__all__"}:
            return set(ast.literal_eval(node.value))
    return {name for node in body for name in _bound(node)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", help="of torch_npu, such as 2.13")
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--names", type=Path, nargs=2, metavar=("TORCH_NPU", "TORCH"))
    parser.add_argument("--op-plugin", type=Path)
    parser.add_argument("--dispatcher", action="store_true")
    options = parser.parse_args()
    if options.docs:
        apis = {row[0]: row for row in documented(options.docs)}
        write_version(FACTS / "apis.csv", ["api", *SERIES, "limits"], options.version, apis.values())
    if options.names:
        rows = [(module, name) for module, found in names(*options.names).items() for name in found]
        write_version(FACTS / "names.csv", ["module", "name"], options.version, rows)
    if options.dispatcher:
        write_version(FACTS / "operators.csv", ["op", "kernel"], options.version, dispatched().items())
    if options.op_plugin:
        with (FACTS / "own_operators.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["op", "first", "last", "instead"])
            writer.writerows(own_ops(options.op_plugin))


if __name__ == "__main__":
    main()
