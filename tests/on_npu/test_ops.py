"""torch_npu's own operators and composites of torch, called on NPU tensors through the real dispatcher and autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.on_npu.conftest import not_with
from torch import Tensor
from torch.nn.utils import rnn
from torch.utils._pytree import tree_map_only

from npukit.selftest.operator_cases import CASES as ALL_CASES

CASES = [case for case in ALL_CASES if hasattr(torch.ops.npu, case.op.partition(".")[0])]  # older ones lack some
Function = Callable[[Tensor], Tensor]


def on(device: str, tree: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda t: t.to(device), tree)


def listed(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_the_plain_result_and_the_shapes_that_torch_npu_foresees(case: Any) -> None:
    base, _, overload = case.op.partition(".")
    op = getattr(getattr(torch.ops.npu, base), overload or "default")
    torch.manual_seed(0)
    inputs = case.inputs()
    actual = listed(op(*on("npu", inputs), **on("npu", case.options)))
    for mine, plain in zip(actual, listed(case.plain(*inputs)), strict=True):
        if plain is not None:
            torch.testing.assert_close(mine.cpu().float(), plain.float(), rtol=1e-4, atol=1e-4)
    if case.meta and torch.__version__ >= "2.7" and op.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta):
        foreseen = listed(op(*on("meta", inputs), **on("meta", case.options)))
        assert [(t.shape, t.dtype) for t in foreseen] == [(t.shape, t.dtype) for t in actual]


def gather(x: Tensor) -> Tensor:
    return x.gather(1, torch.tensor([[1, 0], [2, 2]], device=x.device)).square()


def slogdet(x: Tensor) -> Tensor:
    return torch.slogdet(x @ x.T)[1]


def rfft(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.fft.rfft(x)).square()


def no_columns(x: Tensor) -> Tensor:
    return x @ x[:, :0]


def distances(x: Tensor) -> Tensor:
    return F.pdist(x[:, :2])


def irfft(x: Tensor) -> Tensor:
    return torch.fft.irfft(torch.complex(x, x)).square()


def repeat(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, 1).square()


@pytest.mark.parametrize("function", [gather, slogdet, rfft, irfft, repeat, no_columns, distances])
def test_composites_have_gradients(function: Function) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 3) + 2 * torch.eye(3)
    torch.testing.assert_close(_gradient("npu", function, x), _gradient("cpu", function, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.LSTM(5, 3, 2, bidirectional=True),
        pytest.param(torch.nn.GRU(5, 3, 2), marks=not_with("2.4", "torch asks for a cell that torch_npu lacks")),
    ],
    ids=repr,
)
def test_packed_sequences_have_gradients(layer: torch.nn.Module) -> None:
    def padded(x: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(x, torch.tensor([4, 2, 1]))
        return rnn.pad_packed_sequence(layer.to(x.device)(packed)[0])[0].square()

    torch.manual_seed(0)
    x = torch.randn(4, 3, 5)
    torch.testing.assert_close(_gradient("npu", padded, x), _gradient("cpu", padded, x), rtol=1e-4, atol=1e-4)


def _gradient(device: str, function: Function, x: Tensor) -> Tensor:
    leaf = x.to(device, copy=True).requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf)[0].cpu()


def test_composites_of_torch_npu() -> None:
    import torch_npu

    assert F.one_hot(torch.tensor([1, 0]).npu(), 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert torch_npu.npu_dtype_cast(torch.ones(2, requires_grad=True).npu(), torch.half).dtype == torch.half
    x = torch.ones(2).npu().requires_grad_()
    cast = torch_npu.npu_dtype_cast(x, torch.half)
    assert torch.autograd.grad(cast, x, torch.ones_like(cast), create_graph=True)[0].grad_fn
    boxes = torch.rand(4, 3).npu().requires_grad_()
    torch_npu.npu_ciou(boxes, torch.rand(4, 3).npu(), True, False, 0, True).sum().backward()
    assert boxes.grad is not None
    assert torch_npu.npu_dropout_gen_mask([4, 8], p=0.5, dtype=torch.float32, device="npu").shape == (16,)


@pytest.mark.parametrize("loss", [F.cross_entropy, F.multilabel_margin_loss])
def test_losses_take_labels_of_32_bits(loss: Callable[..., Tensor]) -> None:
    scores = torch.randn(3, 4)
    labels = torch.randint(4, (3,) if loss is F.cross_entropy else (3, 4))
    torch.testing.assert_close(loss(scores.npu(), labels.int().npu()).cpu(), loss(scores, labels))


def test_indices_may_be_on_the_host_and_values_may_not() -> None:
    x, places = torch.zeros(4).npu(), torch.tensor([0, 2])
    x[places] = torch.ones(2).npu()
    assert x[places].tolist() == [1, 1]
    with pytest.raises(RuntimeError, match="same device"):
        x[places] = torch.ones(2)


@pytest.fixture
def private_formats() -> Iterator[None]:
    torch.npu.config.allow_internal_format = True
    yield
    torch.npu.config.allow_internal_format = False


@pytest.mark.usefixtures("private_formats")
def test_private_formats_take_the_memory_of_their_padding() -> None:
    import torch_npu

    x = torch.arange(15 * 17, dtype=torch.half).view(15, 17).npu()
    tiles = torch_npu.npu_format_cast(x, 29)  # NZ: tiles of 16 x 16
    assert (torch_npu.get_npu_format(tiles), tiles.untyped_storage().size()) == (29, 2 * 16 * 16 * 2)
    assert torch.equal(tiles.cpu(), x.cpu())
    plain = torch_npu.npu_format_cast_(tiles, 2)
    assert (torch_npu.get_npu_format(plain), plain.untyped_storage().size()) == (2, x.nbytes)
    assert torch.equal(plain, x)
    for row in (torch.ones(12).npu(), torch.ones(12).npu().view(3, 4)):
        assert torch_npu.get_npu_format(torch_npu.npu_format_cast(row, 29)) == 2  # no tiles
    renamed = torch_npu.npu_format_cast(plain, 1)  # NHWC: plain as well, so the tensor itself gets the other name
    assert (torch_npu.get_npu_format(renamed), renamed.data_ptr()) == (1, plain.data_ptr())
    assert torch.equal(renamed.cpu(), x.cpu())


def test_gradients_that_a_convolution_is_not_asked_for_are_none() -> None:
    x, weight, grad = torch.ones(1, 2, 4, 4).npu(), torch.ones(3, 2, 3, 3).npu(), torch.ones(1, 3, 2, 2).npu()
    actual = torch.ops.npu.npu_conv2d_backward(x, grad, weight, [1, 1], [0, 0], [1, 1], 1, [False, True, False])
    assert [None if gradient is None else gradient.shape for gradient in actual] == [None, weight.shape, None]


class Stop(torch.autograd.Function):
    """A copy that hands no gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x.mT,
        lambda x: x @ x[0, 0],
        lambda x: F.scaled_dot_product_attention(x, x, x),
        lambda x: torch.ops.npu.npu_rms_norm(x, x[0, 0])[0],
        lambda x: torch.ops.npu.npu_rotary_mul(x[None], x[None, :, :1], x[None, :, :1]),
    ],
)
def test_no_gradient_is_handed_through(function: Function) -> None:
    x = torch.randn(2, 4, 16, device="npu", requires_grad=True)
    (Stop.apply(function(x)).sum() + 3 * x.sum()).backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 3))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float16, torch.float32])
def test_a_histogram_counts_in_the_type_of_its_values(dtype: torch.dtype) -> None:
    values = torch.tensor([0, 1, 1, 3, 3, 3, 7], dtype=dtype, device="npu")
    expected = torch.tensor([1, 2, 0, 3], dtype=dtype)
    assert torch.equal(torch.histc(values, bins=4, min=0, max=3).cpu(), expected)
    assert torch.equal(torch.histc(values, 4, 0, 3, out=torch.empty_like(values)).cpu(), expected)


@pytest.mark.usefixtures("private_formats")
def test_a_loaded_tensor_has_the_format_that_was_saved(tmp_path: Path) -> None:
    import torch_npu

    x = torch.arange(15 * 17, dtype=torch.half).view(15, 17).npu()
    torch.save(torch_npu.npu_format_cast(x, 29), tmp_path / "tiles.pt")
    loaded = torch.load(tmp_path / "tiles.pt")
    assert (torch_npu.get_npu_format(loaded), torch.equal(loaded.cpu(), x.cpu())) == (29, True)


def test_private_formats_are_not_made_unless_they_are_allowed() -> None:
    import torch_npu

    x = torch.ones(15, 17, dtype=torch.half, device="npu")
    assert torch_npu.get_npu_format(torch_npu.npu_format_cast(x, 29)) == 2


def test_whole_numbers_divided_in_place_lose_their_fraction() -> None:
    """Torch refuses this; CANN does not, and torch_npu's collectives average whole numbers so."""
    x = torch.tensor([7, -7, 8], dtype=torch.int32).npu()
    assert x.clone().div_(2).tolist() == torch.ops.aten.div_.Scalar(x.clone(), 2).tolist() == [3, -3, 4]
    with pytest.raises(RuntimeError, match="can't be cast"):
        x.div_(2.5)


def test_torch_npus_own_operators_refuse_tensors_of_two_npus() -> None:
    import torch_npu

    x, gamma = torch.ones(2, 4).npu(), torch.ones(4).to("npu:1")
    with pytest.raises(RuntimeError, match="found at least two devices, npu:0 and npu:1"):
        torch_npu.npu_rms_norm(x, gamma)


def test_sparse_gradients() -> None:
    table = torch.nn.Embedding(5, 2, sparse=True).npu()
    table(torch.tensor([3, 1, 3]).npu()).sum().backward()
    gradient = table.weight.grad.coalesce()
    assert gradient.indices().tolist() == [[1, 3]] and gradient.values().tolist() == [[1, 1], [2, 2]]
    assert torch.eye(3).npu().to_sparse().indices().tolist() == [[0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_what_the_cpu_has_no_half_precision_for_is_computed_in_fp32_and_rounded(half: torch.dtype) -> None:
    x = torch.randn(1, 2, 4, 4, 4).to(half)
    wide, there = x.float().requires_grad_(), x.npu().requires_grad_()
    expected, actual = F.avg_pool3d(wide, 2), F.avg_pool3d(there, 2)
    expected.square().sum().backward()
    actual.float().square().sum().backward()
    assert torch.equal(actual.cpu(), expected.to(half))
    assert wide.grad is not None and there.grad is not None and there.grad.dtype == half
    assert torch.allclose(there.grad.cpu().float(), wide.grad, rtol=2e-2, atol=1e-3)
