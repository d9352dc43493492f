"""NPU tensors that share memory or change their size, seen through operators."""

from __future__ import annotations

import pytest
import torch
from tests.on_npu.conftest import since


def test_tensors_that_overlap_are_refused() -> None:
    x = torch.arange(6.0).npu()
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        torch.add(x[:-1], 1, out=x[1:])


def test_the_same_tensor_twice_is_one() -> None:
    x = torch.arange(3.0).npu()
    assert torch.add(x, x, out=x) is x
    assert x.tolist() == [0, 2, 4]


def test_memory_is_free_as_soon_as_its_tensor_is_gone() -> None:
    before = torch.npu.memory_allocated()
    x = torch.ones(1000, device="npu")
    y = x + 1
    x.mul_(y)
    del x, y
    assert torch.npu.memory_allocated() == before


def test_results_are_the_same_after_other_operators_ran() -> None:
    results = []
    for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float32):
        for inference in (False, True):
            with torch.inference_mode(inference):
                host = torch.arange(6).view(2, 3).to(dtype)
                npu = host.npu()
                results += [
                    (npu.t() + npu.t(), host.t() + host.t()),
                    (npu * npu[0], host * host[0]),
                    (-(~(npu == 1)).int(), -(~(host == 1)).int()),
                ]
    for on_npu, on_host in results:
        assert on_npu.device.type == "npu"
        assert (on_npu.dtype, on_npu.stride(), on_npu.is_inference()) == (
            on_host.dtype,
            on_host.stride(),
            on_host.is_inference(),
        )
        assert torch.equal(on_npu.cpu(), on_host)


@since("2.4", "torch itself does not resize them")
def test_lists_of_outputs_are_resized() -> None:
    outs = [torch.empty(0).npu(), torch.empty(0).npu()]
    torch.split_with_sizes_copy(torch.arange(6.0).npu(), [2, 4], out=outs)
    assert [out.tolist() for out in outs] == [[0, 1], [2, 3, 4, 5]]


def test_conjugated_and_negated_views_are_copied_as_the_values_that_they_show() -> None:
    x = torch.tensor([1 + 2j, 3 - 1j])
    for view in (x.conj(), x.conj().imag):
        for copied in (
            torch.empty_like(view, device="npu").copy_(view),
            torch.empty_like(view).copy_(view.npu()),
            torch.empty_like(view).copy_(x.npu().conj() if view.is_complex() else x.npu().conj().imag),
        ):
            assert copied.tolist() == view.tolist()
    for target in (torch.zeros(2, dtype=x.dtype, device="npu"), torch.zeros(2, dtype=x.dtype)):
        target.conj().copy_(x)
        target.conj().copy_(x.npu())
        assert target.tolist() == x.conj().tolist()


def test_an_output_that_is_also_an_input_is_not_resized() -> None:
    row, table = torch.ones(1, 3, device="npu"), torch.ones(2, 3, device="npu")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.mul(row, table, out=row)
    assert row.shape == (1, 3)


@pytest.mark.skipif(torch.__version__ < "2.7", reason="older versions of torch_npu keep the check to themselves")
def test_memory_marked_after_an_error_is_not_read_until_it_is_written() -> None:
    from torch_npu.npu import _recovery as recovery

    lost, kept = torch.ones(300).npu(), torch.ones(300).npu()
    recovery.mark_all_npu_tensor_unsafe(torch.npu.current_device())
    assert lost.sum().item() == 300  # the check is off
    recovery.set_npu_tensor_unsafe_check_flag(True)
    try:
        for read in (
            lambda: lost + 1,
            lost.cpu,
            lambda: torch.stack([lost]),
            lambda: torch.ones(300).npu().copy_(lost),
        ):
            with pytest.raises(RuntimeError, match="ERR00003"):
                read()
        assert lost.copy_(torch.full((300,), 2.0)).sum().item() == 600  # from the host
        assert kept.copy_(lost).sum().item() == 600  # on the device
    finally:
        recovery.set_npu_tensor_unsafe_check_flag(False)
