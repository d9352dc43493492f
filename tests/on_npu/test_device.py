"""What the simulated device owes its users: memory, random numbers, other devices."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from tests.on_npu.conftest import since
from torch.utils.checkpoint import checkpoint

GIB = 1 << 30


def _draw() -> list[float]:
    drawn: list[float] = torch.rand(4, device="npu").tolist()
    return drawn


def test_memory_is_the_cards_not_the_hosts() -> None:
    gc.collect()
    torch.npu.empty_cache()
    free, total = torch.npu.mem_get_info()
    assert 60 * GIB < free <= total == 64 * GIB
    reserved = torch.npu.memory_reserved()
    large = torch.empty(40 * GIB, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() >= 40 * GIB
    del large
    torch.npu.empty_cache()
    zeros = torch.zeros(2 * GIB, dtype=torch.uint8, device="npu")
    assert zeros[:: 1 << 26].sum().item() == 0
    del zeros
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() <= reserved
    assert torch.npu.max_memory_allocated() // GIB == 40
    error = torch.OutOfMemoryError if torch.__version__ >= "2.7" else RuntimeError
    with pytest.raises(error, match=r"NPU out of memory\. Tried to allocate 65\.00 GiB"):
        torch.empty(65 * GIB, dtype=torch.uint8, device="npu")


def test_a_product_costs_its_result_and_nothing_else() -> None:
    a = torch.ones(1000, 1000, device="npu")
    before = torch.npu.memory_allocated()
    product = a @ a
    assert torch.npu.memory_allocated() - before < 1.1 * product.nbytes


def test_seeds_and_states_give_the_same_numbers_again() -> None:
    torch.manual_seed(5)
    first, second = _draw(), _draw()
    torch.npu.manual_seed(5)
    assert _draw() == first != second
    state = torch.npu.get_rng_state()
    assert _draw() == second
    torch.npu.set_rng_state(state)
    with torch.random.fork_rng(device_type="npu"):
        torch.npu.manual_seed(99)
        _draw()
    assert _draw() == second, "a fork of the generator leaves it where it was"


def test_a_generator_of_ones_own_leaves_the_default_one_alone() -> None:
    torch.npu.manual_seed(5)
    expected = _draw()
    torch.npu.manual_seed(5)
    own, same = (
        torch.randn(4, device="npu", generator=torch.Generator("npu").manual_seed(1)).tolist() for _ in range(2)
    )
    assert own == same
    assert _draw() == expected
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(4, device="npu", generator=torch.Generator())


def test_dropout_is_the_same_when_it_is_computed_again_and_leaves_the_cpus_generator_alone() -> None:
    host = torch.get_rng_state()
    x = torch.ones(1000, device="npu", requires_grad=True)
    y = checkpoint(torch.nn.Dropout(0.5), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert 300 < (y == 0).sum().item() < 700
    assert not torch.equal(F.dropout(x), F.dropout(x))
    assert torch.equal(host, torch.get_rng_state())


def test_devices_are_kept_apart() -> None:
    x = torch.ones(3, device="npu:1")
    assert (x + 1).device == torch.device("npu:1") and torch.npu.current_device() == 0
    assert x.to("npu:0").sum().item() == 3 and torch.npu.memory_allocated(1) > 0
    for other in (torch.ones(3, device="npu:0"), torch.ones(3)):
        with pytest.raises(RuntimeError, match="same device"):
            x + other
    assert (x * torch.tensor(2.0)).sum().item() == 6, "a number on the CPU is welcome"


def test_torch_compile_runs_eagerly() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).npu()
    x = torch.randn(4, 8, device="npu")
    compiled = torch.compile(model)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    assert model[0].weight.grad is not None


def test_what_torch_npu_computes_on_the_cpu_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    torch.linalg.eigvalsh(torch.eye(3, device="npu"))
    assert "'aten::_linalg_eigh.eigenvalues' is not currently supported on the NPU backend" in capfd.readouterr().err


@since("2.7", "there is no such operator")
def test_what_is_not_simulated_is_named() -> None:
    with pytest.raises(NotImplementedError, match="npu_fused_causal_conv1d is not simulated"):
        torch.ops.npu.npu_fused_causal_conv1d(*[torch.ones(1, device="npu")] * 3)
