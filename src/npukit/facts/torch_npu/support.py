"""Which APIs of torch run on an NPU, by torch_npu version and card. The data is from scripts/make_support_facts.py."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from npukit.facts.cards import card
from npukit.facts.target import Target
from npukit.facts.torch_npu import APIS, OPERATORS
from npukit.facts.versions import key

Status = Literal["yes", "limited", "cpu_fallback", "no", "unknown"]

# Public functions that merely wrap an operator with another name.
_BEHIND = {
    "linalg_inv": "linalg_inv_ex",
    "inverse": "linalg_inv_ex",
    "linalg_det": "_linalg_det",
    "det": "_linalg_det",
    "linalg_slogdet": "_linalg_slogdet",
    "slogdet": "_linalg_slogdet",
    "logdet": "_linalg_det",
    "linalg_eigh": "_linalg_eigh",
    "linalg_eigvalsh": "_linalg_eigh",
    "linalg_eigvals": "_linalg_eigvals",
    "linalg_solve": "_linalg_solve_ex",
    "linalg_lu_factor": "linalg_lu_factor_ex",
    "linalg_ldl_factor": "linalg_ldl_factor_ex",
    "matrix_exp": "linalg_matrix_exp",
    "rnn": "rnn_tanh",
    "instance_norm1d": "instance_norm",
}
_PREFIXES = {
    "torch.linalg.": "linalg_",
    "torch.special.": "special_",
    "torch.fft.": "fft_",
    "torch.nn.functional.": "",
    "torch.Tensor.": "",
}


@dataclass(frozen=True)
class Support:
    """Whether an API runs on an NPU. Limits: input:fp16|fp32, without:dropout, inference_only, see_docs and others."""

    api: str
    status: Status
    source: str
    version: str
    limits: tuple[str, ...] = ()
    certain: bool = False  # according to the dispatcher, not only the documentation

    def types(self) -> dict[str, frozenset[str]]:
        """The number types that each limited argument accepts.

        >>> support("torch.bincount", Target.of()).types()
        {}
        """
        named = (limit.split(":", 1) for limit in self.limits if ":" in limit and not limit.startswith("without:"))
        return {argument: frozenset(types.split("|")) for argument, types in named}


@functools.cache
def _documented(version: str) -> dict[str, dict[str, str]]:
    return {row["api"]: row for row in APIS.rows(version)}


@functools.cache
def _kernels(version: str) -> dict[str, str]:
    """What runs an aten operator: npu, composite, cpu or none; empty for versions without dispatcher data.

    Only the version's own dispatcher counts, because an older one does not know newer operators.
    """
    return {row["op"]: row["kernel"] for row in OPERATORS.rows(version)}


def _spellings(api: str) -> Iterator[str]:
    yield api
    head, _, last = api.rpartition(".")
    if head == "torch.distributions":  # documented under the module that defines it
        yield f"{head}.{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', last).lower()}.{last}"


def _operator(api: str) -> str:
    for prefix, op in _PREFIXES.items():
        if api.startswith(prefix):
            name = op + api.removeprefix(prefix)
            break
    else:
        head, _, name = api.rpartition(".")
        if head not in ("torch", "torch.nn"):
            return ""
        if head == "torch.nn":
            name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return _BEHIND.get(name, name)


@functools.lru_cache(maxsize=8192)
def support(api: str, target: Target) -> Support:
    """What is known about `api` with this torch_npu and card.

    If the dispatcher knows the operator, its answer counts, because it decides what runs; otherwise the
    documentation's.

    >>> support("torch.linalg.det", Target.of()).status
    'cpu_fallback'
    """
    version = target.facts_version
    rows = _documented(version)
    row: dict[str, str] = next((rows[name] for name in _spellings(api) if name in rows), {})
    stated = row.get(card(target.card).series, "unknown")
    limits = tuple(row.get("limits", "").split())
    kernel = _kernels(version).get(_operator(api), "")
    dispatcher = f"dispatcher of torch_npu {version}"
    if kernel in ("cpu", "none"):
        return Support(api, "cpu_fallback" if kernel == "cpu" else "no", dispatcher, version, certain=True)
    if kernel and stated in ("no", "unknown"):
        if stated == "no":
            return Support(api, "unknown", f"{dispatcher} has it, the documentation says no", version)
        return Support(api, "yes", dispatcher, version, certain=True)
    if kernel and stated == "cpu_fallback":
        stated = "limited"  # only some types fall back to the CPU
    source = f"API table of torch_npu {version}" if row else "no source"
    return Support(api, stated, source, version, limits)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=8)
def unsupported(target: Target) -> frozenset[str]:
    """Every torch API that falls back to the CPU or does not run, if it is documented or named like its operator.

    >>> "torch.linalg.det" in unsupported(Target.of())
    True
    """
    lacking = {op for op, kernel in _kernels(target.facts_version).items() if kernel in ("cpu", "none")}
    lacking |= {public for public, op in _BEHIND.items() if op in lacking}
    written = {
        prefix + op.removeprefix(start) for prefix, start in _PREFIXES.items() for op in lacking if op.startswith(start)
    }
    names = {*_documented(target.facts_version), *written, *(f"torch.{op}" for op in lacking)}
    return frozenset(api for api in names if support(api, target).status in ("no", "cpu_fallback"))


def limited(target: Target, argument: str) -> frozenset[str]:
    """Every documented API with an argument that accepts only some types.

    >>> "torch.arange" in limited(Target.of(), "dtype")
    True
    """
    rows = _documented(target.facts_version)
    return frozenset(api for api, row in rows.items() if f"{argument}:" in row.get("limits", ""))


@dataclass(frozen=True)
class OwnOp:
    """An operator that only torch_npu has. `instead` is the replacement of a deprecated one."""

    op: str
    first: str
    last: str
    instead: str


@functools.cache
def own_ops() -> dict[str, OwnOp]:
    """torch_npu's own operators by name."""
    with Path(__file__).with_name("own_operators.csv").open(encoding="utf-8", newline="") as file:
        return {row["op"]: OwnOp(**row) for row in csv.DictReader(file)}


def has_own_op(op: str, version: str) -> bool:
    """Whether this version of torch_npu has `op` and has not deprecated it.

    >>> has_own_op("npu_rms_norm", "2.13"), has_own_op("npu_silu", "2.13")
    (True, False)
    """
    known = own_ops().get(op)
    if known is None or known.instead:
        return False
    minor = key(version)[:2]
    return key(known.first) <= minor and (not known.last or minor <= key(known.last))
