"""Make the facts about what CANN's operators accept: a column of src/npukit/facts/aclnn.csv.

    python scripts/make_type_facts.py 9.1 --cann OPS_MATH OPS_NN OPS_CV --op-plugin OP_PLUGIN

Sources, each checked out at the branch of that version: github.com/hicann/ops-math, ops-nn and ops-cv (documentation
and source of the aclnn functions) and github.com/Ascend/op-plugin (which aclnn function computes an operator of torch).

Only what is certain is taken over. A type counts as refused where three sources agree: the documented types of the
argument lack it, the source of the aclnn function does not mention it, and the code of torch_npu in front of it hands
the tensor over as it is. An operator that can end in several aclnn functions may be given what any of them accepts.
"""

# ruff: noqa: RUF001 (the documentation is Chinese)
from __future__ import annotations

import argparse
import functools
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml
from version_table import write_version

FACTS = Path(__file__).parent.parent / "src" / "npukit" / "facts" / "aclnn.csv"
TYPES = {
    "FLOAT": "fp32", "FLOAT32": "fp32", "FLOAT16": "fp16", "BFLOAT16": "bf16", "BF16": "bf16", "DOUBLE": "fp64",
    "FLOAT64": "fp64", "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64", "UINT8": "uint8",
    "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "BOOL": "bool", "COMPLEX32": "complex32",
    "COMPLEX64": "complex64", "COMPLEX128": "complex128",
}  # fmt: skip
COMMON = set(TYPES.values()) - {"uint16", "uint32", "uint64", "complex32"}  # torch itself computes little in the others
NAMED_IN_CODE = {
    "Double": ["fp64"], "Complex": ["complex64", "complex128"], "Float": ["fp32"], "Half": ["fp16"],
    "BFloat16": ["bf16"], "Long": ["int64"], "Int": ["int32"], "Short": ["int16"], "Char": ["int8"], "Byte": ["uint8"],
    "Bool": ["bool"], "isIntegralType": ["int8", "int16", "int32", "int64", "uint8", "bool"],
}  # fmt: skip
TYPE_LIST = re.compile(r"[A-Z0-9_、，, ]+")
REVIEWED = {name: ("aclnnBatchMatMul", ["self", "mat2"]) for name in ("bmm", "bmm.out", "bmm.dtype", "bmm.dtype_out")}
"""Operators whose code only reorders the tensors before it hands them over, which a person has read."""
FALLBACK = re.compile(r"DO_\w*COMPATIBILITY\((?:[^()]|\([^()]*\))*\)")  # for libraries that lack the aclnn function
ELSEWHERE = re.compile(r"acl_op::|op_api::\w+\(|return at::\w+\(|\bcpu\(\)|EXEC_UPDATE")


@dataclass(frozen=True)
class Accepted:
    """What an argument may be: its types, and the most dimensions that it may have (0: not known)."""

    types: frozenset[str]
    dims: int

    def __or__(self, other: Accepted) -> Accepted:
        return Accepted(self.types | other.types, max(self.dims, other.dims) if self.dims and other.dims else 0)


class Tables(HTMLParser):
    """The cells of all tables of a page, as text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._in_cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        """Open a row or a cell."""
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        self._in_cell = tag in ("td", "th") or (self._in_cell and tag not in ("tr", "table"))

    def handle_data(self, data: str) -> None:
        """Take over the text of a cell."""
        if self._in_cell and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


class Cann:
    """The aclnn functions of a release."""

    def __init__(self, checkouts: list[Path]) -> None:
        self._pages = [page for folder in checkouts for page in folder.rglob("docs/aclnn*.md") if _released(page)]
        self._sources = [file for folder in checkouts for file in folder.rglob("aclnn_*.cpp") if _released(file)]

    @cached_property
    def functions(self) -> dict[str, list[Accepted | None]]:
        """By function: what each parameter accepts, in order; None where it is no input or nothing is certain."""
        found: dict[str, list[Accepted | None]] = {}
        for page in self._pages:
            text = page.read_text(encoding="utf-8")
            prototypes = dict(re.findall(r"aclnnStatus +(aclnn\w+)GetWorkspaceSize\s*\((.*?)\)", text, re.S))
            parts = re.split(r"^## *(aclnn\w+)GetWorkspaceSize", text, flags=re.M)
            for function, body in zip(parts[1::2], parts[2::2], strict=True):
                rows = dict(_rows(body.partition("\n## ")[0]))
                found[function] = [
                    self._accepted(function, each, rows) for each in _split(prototypes.get(function, ""))
                ]
        return found

    def _accepted(self, function: str, parameter: str, rows: dict[str, dict[str, str]]) -> Accepted | None:
        row = rows.get(parameter.split()[-1].lstrip("*"), {})
        documented = row.get("数据类型", "")
        mentioned = set(re.findall(r"DT_(\w+)", self._source(function)))
        if (
            not self._source(function)
            or not re.match(r"const aclTensor(List)?\b", parameter)
            or not TYPE_LIST.fullmatch(documented)
        ):
            return None
        dims = re.fullmatch(r"\d+ *[-~] *(\d+)", next((cell for head, cell in row.items() if "维度" in head), ""))
        checked = dims and re.search(r"MAX_DIM|MAX_SUPPORT_DIM", self._source(function))
        types = {TYPES[word] for word in {*re.findall(r"\w+", documented), *mentioned} if word in TYPES}
        return Accepted(frozenset(types), int(dims[1]) if dims and checked else 0)

    def _source(self, function: str) -> str:
        return self._by_function.get(function, "")

    @cached_property
    def _by_function(self) -> dict[str, str]:
        texts = (file.read_text(encoding="utf-8", errors="replace") for file in self._sources)
        return {name: text for text in texts for name in re.findall(r"aclnnStatus (aclnn\w+)GetWorkspaceSize", text)}


def _rows(section: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A table of parameters: by name, the cells by the heads of their columns."""
    head: list[str] = []
    for row in Tables(section).rows:
        if "数据类型" in row:
            head = row
        elif head and len(row) == len(head):
            yield re.split(r"[（(]", row[0])[0], dict(zip(head, row, strict=True))


def _released(path: Path) -> bool:
    return not {"experimental", "tests", "examples"} & set(path.parts)


@dataclass(frozen=True)
class Code:
    """A function of op-plugin, and what it calls."""

    name: str
    parameters: list[tuple[str, bool]]  # name, and whether it is a tensor
    body: str


DEFINITION = re.compile(r"^(?:static |inline )*[\w:<>, ]*[\w>][ &*]+(\w+)\(([^;{}]*?)\)\s*\{\n(.*?)^\}", re.M | re.S)
ARGUMENTS = r"((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)"
EXEC = re.compile(rf"EXEC_NPU\w*_CMD\w*\(\s*(aclnn\w+),{ARGUMENTS}\)")


def code(file: Path) -> Iterator[Code]:
    """The functions that a file of op-plugin defines."""
    for name, parameters, body in DEFINITION.findall(file.read_text(encoding="utf-8", errors="replace")):
        named = [(each.split()[-1].lstrip("&*"), "Tensor" in each) for each in _split(parameters)]
        yield Code(name, named, FALLBACK.sub("", body))


def _split(arguments: str) -> list[str]:
    return [each.strip() for each in re.split(r",(?![^(<]*[)>])", arguments) if each.strip()]


@dataclass(frozen=True)
class Way:
    """One aclnn function that an operator may end in, and what the operator's arguments may then be."""

    function: str
    accepts: dict[str, Accepted]


class OpPlugin:
    """Which aclnn functions compute an operator, and what becomes of its arguments."""

    def __init__(self, checkout: Path, cann: Cann) -> None:
        self._cann = cann
        config = checkout / "op_plugin" / "config" / "op_plugin_functions.yaml"
        self._rows = yaml.safe_load(config.read_text(encoding="utf-8"))
        self._files = [[*code(file)] for file in sorted((checkout / "op_plugin" / "ops" / "opapi").rglob("*.cpp"))]
        self._generators = {row["func"].split("(")[0]: row["gen_opapi"] for row in self._all() if "gen_opapi" in row}

    def _all(self) -> list[dict[str, Any]]:
        return [*self._rows["official"], *self._rows["custom"]]

    def operators(self) -> Iterator[tuple[str, str, str, Accepted]]:
        """(operator, aclnn function, argument, what it accepts), of all arguments with a limit."""
        official = len(self._rows["official"])
        for number, row in enumerate(self._all()):
            name, _, schema = row["func"].partition("(")
            inputs, _, _ = schema.rpartition(") ->")
            parameters = [
                (each.split()[-1].partition("=")[0], each.startswith("Tensor"))
                for each in _split(inputs.replace("*,", ""))
            ]
            if "op_api" in row:
                ways = self._operator(name, row, parameters)
                for argument, accepted in _accepted_by_any(ways):
                    yield f"{'aten' if number < official else 'npu'}::{name}", ways[-1].function, argument, accepted

    def _operator(self, name: str, row: dict[str, Any], parameters: list[tuple[str, bool]]) -> list[Way]:
        if name in REVIEWED:
            return [self._way(*REVIEWED[name], parameters)]
        if "gen_opapi" in row:
            return self._generated(row["gen_opapi"], parameters)
        return self._written(name, parameters)

    def _generated(self, how: dict[str, Any], parameters: list[tuple[str, bool]]) -> list[Way]:
        while "structured_inherit" in how and "exec" not in how:
            how = self._generators[how["structured_inherit"]]
        if "exec" not in how or "new_params" in how:
            return []
        function, *given = [each.strip() for each in how["exec"].split(",")]
        return [self._way(function, given or [name for name, _ in parameters], parameters)]

    def _way(self, function: str, given: list[str], parameters: list[tuple[str, bool]]) -> Way:
        tensors = {name for name, is_tensor in parameters if is_tensor}
        wanted = self._cann.functions.get(function, [])
        pairs = zip(given, wanted, strict=False)
        return Way(function, {name: accepted for name, accepted in pairs if accepted and name in tensors})

    def _written(self, op: str, parameters: list[tuple[str, bool]]) -> list[Way]:
        base, _, overload = op.partition(".")
        name = f"{base}_out" if overload.endswith("out") else base
        kinds = [is_tensor for _, is_tensor in parameters]
        for functions in self._files:
            for function in functions:
                if function.name == name and [is_tensor for _, is_tensor in function.parameters] == kinds:
                    ours = {
                        theirs: ours for (theirs, _), (ours, _) in zip(function.parameters, parameters, strict=True)
                    }
                    return [_renamed(way, ours) for way in self._ways(function, functions)]
        return []

    def _ways(self, function: Code, beside: list[Code], callers: tuple[str, ...] = ()) -> list[Way]:
        """All that a function may end in; nothing where that is not plain to see."""
        if ELSEWHERE.search(function.body) or function.name in callers:
            return []
        found = [self._way(api, _split(given), function.parameters) for api, given in EXEC.findall(function.body)]
        names = [other.name for other in beside]
        for other in beside:
            for given in re.findall(rf"(?<![\w:]){other.name}\({ARGUMENTS}\)", function.body):
                called = self._ways(other, beside, (*callers, function.name)) if names.count(other.name) == 1 else []
                if not called and ("EXEC" in other.body or names.count(other.name) > 1):
                    return []
                handed = dict(zip((name for name, _ in other.parameters), _split(given), strict=False))
                found += [_renamed(way, handed) for way in called]
        return [_with_types(way, _named_types(function.body)) for way in found]


def _named_types(body: str) -> set[str]:
    """The types that code treats in a way of their own."""
    return {each for word, types in NAMED_IN_CODE.items() if re.search(rf"\bk?{word}|is{word}", body) for each in types}


def _with_types(way: Way, types: set[str]) -> Way:
    more = {name: Accepted(accepted.types | types, accepted.dims) for name, accepted in way.accepts.items()}
    return Way(way.function, more)


def _renamed(way: Way, names: dict[str, str]) -> Way:
    return Way(way.function, {names[name]: accepted for name, accepted in way.accepts.items() if name in names})


def _accepted_by_any(ways: list[Way]) -> Iterator[tuple[str, Accepted]]:
    for argument in ways[0].accepts if ways else ():
        accepted = [way.accepts[argument] for way in ways if argument in way.accepts]
        if len(accepted) == len(ways):
            yield argument, functools.reduce(operator.or_, accepted)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", help="of CANN, such as 9.1")
    parser.add_argument("--cann", type=Path, nargs="+", required=True)
    parser.add_argument("--op-plugin", type=Path, required=True)
    options = parser.parse_args()
    rows = [
        (op, function, argument, " ".join(sorted(COMMON & accepted.types)), str(accepted.dims or ""))
        for op, function, argument, accepted in OpPlugin(options.op_plugin, Cann(options.cann)).operators()
    ]
    write_version(FACTS, ["op", "function", "argument", "types", "dimensions"], options.version, rows)


if __name__ == "__main__":
    main()
