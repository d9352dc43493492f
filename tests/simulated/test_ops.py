"""torch_npu's own ops, called on NPU tensors through the real dispatcher and autograd."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

CASES = Path(__file__).parents[1] / "simulate" / "op_cases.py"

PREAMBLE = """
import runpy, sys
import torch, torch_npu
from torch.utils._pytree import tree_map_only

def on(device, tree):
    return tree_map_only(torch.Tensor, lambda t: t.to(device), tree)

def listed(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]
"""


def test_ops_of_the_table_give_the_plain_result_and_the_shapes_that_torch_npu_foresees(
    simulated: Callable[..., str],
) -> None:
    code = """
    wrong = []
    for number, case in enumerate(runpy.run_path(sys.argv[1])["CASES"]):
        base, _, overload = case.op.partition(".")
        op = getattr(getattr(torch.ops.npu, base), overload or "default")
        torch.manual_seed(0)
        inputs = case.inputs()
        try:
            found = listed(op(*on("npu", inputs), **on("npu", case.options)))
            expected = listed(case.plain(*inputs))
            for mine, plain in zip(found, expected, strict=True):
                if plain is not None:
                    torch.testing.assert_close(mine.cpu().float(), plain.float(), rtol=1e-4, atol=1e-4)
            if case.meta and op.has_kernel_for_dispatch_key(torch._C.DispatchKey.Meta):
                foreseen = listed(op(*on("meta", inputs), **on("meta", case.options)))
                assert [(t.shape, t.dtype) for t in foreseen] == [(t.shape, t.dtype) for t in found], foreseen
        except Exception as error:
            wrong.append(f"{number} {case.op}: {type(error).__name__} {error}")
    print("\\n".join(wrong))
    """
    assert simulated(PREAMBLE + _dedented(code), str(CASES)) == ""


def test_composite_ops_have_gradients(simulated: Callable[..., str]) -> None:
    code = """
    import torch.nn.functional as F

    def gradients(device, function, *inputs):
        leaves = [t.clone().to(device).requires_grad_() for t in inputs]
        return [g.cpu() for g in torch.autograd.grad(function(*leaves).sum(), leaves)]

    def packed(layer):
        def run(x):
            p = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2, 1]))
            return torch.nn.utils.rnn.pad_packed_sequence(layer.to(x.device)(p)[0])[0].square()
        return run

    torch.manual_seed(0)
    square, sequence = torch.randn(3, 3) + 2 * torch.eye(3), torch.randn(4, 3, 5)
    functions = {
        "gather": (lambda x: x.gather(1, torch.tensor([[1, 0], [2, 2]], device=x.device)).square(), square),
        "slogdet": (lambda x: torch.slogdet(x)[1], square @ square.T),
        "rfft": (lambda x: torch.view_as_real(torch.fft.rfft(x)).square(), square),
        "irfft": (lambda x: torch.fft.irfft(torch.complex(x, x)).square(), square),
        "lstm": (packed(torch.nn.LSTM(5, 3, 2, bidirectional=True)), sequence),
        "gru": (packed(torch.nn.GRU(5, 3, 2)), sequence),
        "repeat": (lambda x: x.repeat_interleave(2, 1).square(), square),
    }
    for name, (function, *inputs) in functions.items():
        torch.testing.assert_close(gradients("npu", function, *inputs), gradients("cpu", function, *inputs),
                                   rtol=1e-4, atol=1e-4, msg=lambda m: name + m)
    assert torch.equal(F.one_hot(torch.tensor([1, 0]).npu(), 3).cpu(), torch.tensor([[0, 1, 0], [1, 0, 0]]))
    y = torch_npu.npu_dtype_cast(torch.ones(2, requires_grad=True).npu(), torch.half)
    boxes = torch.rand(4, 3).npu().requires_grad_()
    torch_npu.npu_ciou(boxes, torch.rand(4, 3).npu(), True, False, 0, True).sum().backward()
    assert boxes.grad is not None and y.dtype == torch.half
    assert torch_npu.npu_dropout_gen_mask([4, 8], p=0.5, dtype=torch.float32, device="npu").shape == (16,)
    """
    assert simulated(PREAMBLE + _dedented(code)) == ""


def _dedented(code: str) -> str:
    return "\n".join(line[4:] for line in code.splitlines())
