"""What of torch runs on an NPU, by torch_npu version and card; scripts/make_support_facts.py makes the data."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from npukit.errors import NpukitError

DEFAULT_VERSION = "2.13"
Status = Literal["yes", "limited", "cpu_fallback", "no", "unknown"]

_FOLDER = Path(__file__).with_name("support")
# Where the public function is only a shell around an operator of another name.
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
    """Whether an API runs on an NPU; `limits` such as input:fp16|fp32, without:dropout, inference_only, see_docs."""

    api: str
    status: Status
    source: str
    version: str
    limits: tuple[str, ...] = ()

    def types(self) -> dict[str, frozenset[str]]:
        """The number types that each limited argument may have.

        >>> support("torch.bincount").types()
        {}
        """
        named = (limit.split(":", 1) for limit in self.limits if ":" in limit and not limit.startswith("without:"))
        return {argument: frozenset(types.split("|")) for argument, types in named}


@functools.cache
def versions() -> tuple[str, ...]:
    """The torch_npu versions that there are tables for, oldest first."""
    found = [path.stem.removeprefix("apis-") for path in _FOLDER.glob("apis-*.csv")]
    return tuple(sorted(found, key=lambda version: [int(part) for part in version.split(".")]))


def known_version(version: str) -> str:
    """The version with a table that `version` stands for.

    >>> known_version("2.13.0")
    '2.13'
    """
    short = ".".join(version.split(".")[:2])
    if short not in versions():
        raise NpukitError(f"There are no support facts for torch_npu {version}: known are {', '.join(versions())}.")
    return short


@functools.cache
def _documented(version: str) -> dict[str, dict[str, str]]:
    with (_FOLDER / f"apis-{version}.csv").open(encoding="utf-8", newline="") as file:
        return {row["api"]: row for row in csv.DictReader(file)}


@functools.cache
def _kernels(version: str) -> dict[str, str]:
    """What runs an aten op: npu, composite, cpu or none; empty for versions whose dispatcher was not asked."""
    path = _FOLDER / f"ops-{version}.csv"
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["op"]: row["kernel"] for row in csv.DictReader(file)}


def _series(card: str) -> str | None:
    if card.startswith("910B"):
        return "A2"
    return "A3" if card.startswith("910_93") else None


def _spellings(api: str) -> Iterator[str]:
    yield api
    head, _, last = api.rpartition(".")
    if head == "torch.distributions":  # documented under the module it is written in
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
def support(api: str, version: str = DEFAULT_VERSION, card: str = "910B3") -> Support:
    """What is known about `api` on that torch_npu and card.

    The dispatcher decides where it knows the operator: it is what runs. Else the documentation does.

    >>> support("torch.linalg.det").status
    'cpu_fallback'
    """
    rows = _documented(version)
    row: dict[str, str] = next((rows[name] for name in _spellings(api) if name in rows), {})
    stated = row.get(_series(card) or "", "unknown")
    limits = tuple(row.get("limits", "").split())
    kernel = _kernels(version).get(_operator(api), "")
    dispatcher = f"dispatcher of torch_npu {version}"
    if kernel in ("cpu", "none"):
        return Support(api, "cpu_fallback" if kernel == "cpu" else "no", dispatcher, version)
    if kernel and stated in ("no", "unknown"):
        if stated == "no":
            return Support(api, "unknown", f"{dispatcher} has it, the documentation says no", version)
        return Support(api, "yes", dispatcher, version)
    if kernel and stated == "cpu_fallback":
        stated = "limited"  # only some types leave the NPU
    source = f"API table of torch_npu {version}" if row else "no source"
    return Support(api, stated, source, version, limits)  # type: ignore[arg-type]


@dataclass(frozen=True)
class OwnOp:
    """An operator that only torch_npu has; `instead` says what replaced a deprecated one."""

    op: str
    first: str
    last: str
    instead: str


@functools.cache
def own_ops() -> dict[str, OwnOp]:
    """torch_npu's own operators by name."""
    with (_FOLDER / "own_ops.csv").open(encoding="utf-8", newline="") as file:
        return {row["op"]: OwnOp(**row) for row in csv.DictReader(file)}


def has_own_op(op: str, version: str = DEFAULT_VERSION) -> bool:
    """Whether torch_npu of that version has `op` and does not call it deprecated.

    >>> has_own_op("npu_rms_norm"), has_own_op("npu_silu")
    (True, False)
    """
    found = own_ops().get(op)

    def number(text: str) -> list[int]:
        return [int(part) for part in text.split(".")]

    return (
        found is not None
        and not found.instead
        and number(found.first) <= number(version)
        and (not found.last or number(version) <= number(found.last))
    )
