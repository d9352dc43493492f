"""The facts that analyze stands on: whole, and right where they were checked against the real torch_npu."""

from __future__ import annotations

from pathlib import Path

import pytest

from npukit.errors import NpukitError
from npukit.facts import api_support
from npukit.facts.affinity import _fused
from npukit.facts.api_support import has_own_op, known_version, own_ops, support, versions
from npukit.facts.cuda_apis import _by_name, cuda_api
from npukit.facts.libraries import imported, libraries, packaged
from npukit.facts.names import names_of


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
    found = support(api)
    assert found.status == status
    assert found.source


def test_types_of_an_argument() -> None:
    assert "fp64" not in support("torch.nn.Conv2d").types()["input"]


def test_every_version_has_a_table_and_unknown_ones_are_refused() -> None:
    assert {"2.7", "2.13"} <= set(versions())
    assert known_version("2.13.0.post2") == "2.13"
    with pytest.raises(NpukitError, match=r"known are 2\.7"):
        known_version("1.8")


def test_tables_stay_small_and_hold_no_foreign_sentences() -> None:
    for path in Path(api_support.__file__).with_name("support").glob("*.csv"):
        assert path.stat().st_size < 300_000
        assert path.read_text(encoding="utf-8").isascii()


def test_fused_operators_are_current() -> None:
    for fused in _fused().values():
        assert fused.op.startswith("NpuFused") or has_own_op(fused.op)
    assert own_ops()["npu_silu"].instead and not has_own_op("npu_silu")


def test_names_without_counterpart_are_missing_from_torch_npu() -> None:
    prefix = "torch.cuda."
    gone = [name.removeprefix(prefix) for name, api in _by_name().items() if api.kind == "none" and prefix in name]
    assert [name for name in gone if name in names_of("npu")] == []
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
