"""The facts that analyze stands on: whole, and right where they were checked against the real torch_npu."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

from npukit.errors import NpukitError
from npukit.facts import torch_npu
from npukit.facts.affinity import _fused
from npukit.facts.cuda_apis import _by_name, cuda_api
from npukit.facts.libraries import imported, libraries, packaged
from npukit.facts.removed_names import RemovedName, removed_names
from npukit.facts.target import Target
from npukit.facts.torch_npu import APIS, NAMES
from npukit.facts.torch_npu.names import names_of
from npukit.facts.torch_npu.support import has_own_op, own_ops, support


@pytest.mark.parametrize(
    ("api", "status"),
    [
        ("torch.matmul", "limited"),
        ("torch.Tensor.cumsum", "limited"),
        ("torch.nn.functional.gelu", "limited"),
        ("torch.linalg.inv", "cpu_fallback"),  # a shell around linalg_inv_ex, which has no NPU kernel
        ("torch.nn.HuberLoss", "cpu_fallback"),
        ("torch.hspmm", "no"),
        ("torch.nn.AdaptiveMaxPool2d", "unknown"),  # documented as unsupported, yet the dispatcher has a kernel
        ("torch.nothing_of_this_name", "unknown"),
    ],
)
def test_support(api: str, status: str) -> None:
    known = support(api, Target.of())
    assert known.status == status
    assert known.source


def test_types_of_an_argument() -> None:
    assert "fp64" not in support("torch.nn.Conv2d", Target.of()).types()["input"]


@pytest.mark.parametrize(
    ("text", "torch_npu", "torch", "cann", "facts"),
    [
        ("torch_npu=2.7", "2.7", "2.7.1", "9.1.0", "2.7"),
        ("torch_npu=2.9.0.post2", "2.9.0.post2", "2.9.0", "9.0.0", "2.7"),  # no folder: the nearest one below
        ("cann=9.0.0", "2.9.0.post2", "2.9.0", "9.0.0", "2.7"),
        ("torch=2.8.0,cann=8.3.RC1", "2.8.0", "2.8.0", "8.3.RC1", "2.7"),
        ("torch_npu=2.1.0.post8", "2.1.0.post8", "2.1.0", "8.0.RC3", "2.7"),  # older than every table: the oldest one
        ("torch-npu=2.13.0.post2", "2.13.0.post2", "2.13.0", "", "2.13"),  # no CANN was published for it yet
    ],
)
def test_what_a_target_leaves_out_is_filled_in(text: str, torch_npu: str, torch: str, cann: str, facts: str) -> None:
    target = Target.parse(text)
    assert (target.torch_npu, target.torch, target.cann, target.facts_version) == (torch_npu, torch, cann, facts)


@pytest.mark.parametrize(
    "text", ["2.7", "torch_npu=", "numpy=2", "torch_npu=new", "torch_npu=1.5", "card=911", "torch_npu=2.7,torch=2.9"]
)
def test_a_target_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(NpukitError):
        Target.parse(text)


def test_the_newest_version_with_facts_is_the_default() -> None:
    assert Target.of().torch_npu == Target.of().facts_version == APIS.versions[-1]


def test_nothing_is_advised_that_a_version_does_not_have() -> None:
    """torch.npu.NAME in an advice is in torch.npu of every version that there are names of."""
    for version in NAMES.versions:
        for api in _by_name().values():
            named = re.findall(r"torch(?:_npu)?\.npu\.(\w+)", api.remedy_for(Target.of(version)))
            assert [name for name in named if name not in {*names_of("npu", version), "_sanitizer"}] == []


def test_tables_stay_small_and_hold_no_foreign_sentences() -> None:
    for path in Path(torch_npu.__file__).parent.rglob("*.csv"):
        assert path.stat().st_size < 300_000
        assert path.read_text(encoding="utf-8").isascii()


def test_fused_operators_are_current() -> None:
    for fused in _fused().values():
        assert fused.op.startswith("NpuFused") or all(has_own_op(fused.op, version) for version in APIS.versions)
    assert own_ops()["npu_silu"].instead and not has_own_op("npu_silu", APIS.versions[-1])


def test_names_without_counterpart_are_missing_from_torch_npu() -> None:
    prefix = "torch.cuda."
    gone = [name.removeprefix(prefix) for name, api in _by_name().items() if api.kind == "none" and prefix in name]
    assert [name for name in gone if name in names_of("npu", APIS.versions[-1])] == []
    assert cuda_api("torch.cuda.synchronize") is None


def test_libraries_are_found_by_import_and_by_package() -> None:
    assert len(libraries()) > 50
    for library in libraries():
        assert (
            library.verdict in ("works", "partial") or library.instead or library.needs or library.verdict == "blocks"
        )
    flash, plain = imported("flash_attn.bert_padding"), imported("numba")
    assert flash is packaged("flash_attn") is packaged("Flash-Attn")
    assert plain is None and imported("numba.cuda") is not None


@pytest.mark.parametrize("removed", removed_names().values(), ids=lambda removed: removed.name)
def test_removed_names_are_not_in_the_installed_torch(removed: RemovedName) -> None:
    """Some functions are left as stubs that raise whatever they are given."""
    owner, _, last = removed.name.rpartition(".")
    try:
        value = getattr(importlib.import_module(owner), last)
    except (ImportError, AttributeError):
        return
    arguments = [torch.eye(2)] * len(inspect.signature(value).parameters.keys() & {"input", "A", "self"})
    with pytest.raises(RuntimeError, match="removed"):
        value(*arguments)
