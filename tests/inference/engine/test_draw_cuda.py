"""The kernel that draws on CUDA against the sampler's own way. It runs where there is a GPU; elsewhere it is
interpreted, which needs Triton: `TRITON_INTERPRET=1 pytest tests/inference/engine/test_draw_cuda.py`.
"""

from __future__ import annotations

import os

import pytest
import torch

from npukit.inference.engine import SamplingParams
from npukit.inference.engine.draw import Numbers, draw

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" and not torch.cuda.is_available(), reason="needs a GPU, or Triton"
)


@pytest.mark.parametrize("temperatures", [1.0, 0.5])
def test_log_probabilities_are_those_of_every_device(temperatures: float) -> None:
    from npukit.inference.engine import draw_cuda

    logits, tokens = torch.randn(5, 9001, device=DEVICE) * 3, torch.randint(0, 9001, (5,), device=DEVICE)
    column = temperatures if temperatures == 1 else torch.full((5, 1), temperatures, device=DEVICE)
    expected = (logits / temperatures).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
    torch.testing.assert_close(draw_cuda.logprobs(logits, tokens, column), expected)


@pytest.mark.parametrize("top_k", [0, 50])
@pytest.mark.parametrize("scale", [1.0, 4.0, 0.0], ids=["flat", "steep", "all equal"])
def test_draws_are_those_of_every_device(scale: float, top_k: int) -> None:
    from npukit.inference.engine import draw_cuda

    torch.manual_seed(0)
    cuts = [(1.0, 0.0), (0.9, 0.0), (0.3, 0.0), (1e-9, 0.0), (1.0, 0.05), (0.8, 0.2)]
    settings = [
        SamplingParams(temperature=0.5 + row % 3, top_p=p, min_p=min_p, top_k=top_k + row * (top_k > 0), seed=row << 32)
        for row, (p, min_p) in enumerate(cuts * 8)
    ]
    logits, positions = torch.randn(len(settings), 20_011) * scale, list(range(1, len(settings) + 1))
    expected = draw(logits, settings, positions)
    values, ids = (column.to(DEVICE) for column in logits.topk(100)) if top_k else (logits.to(DEVICE), None)
    drawn = draw_cuda.draw(values, Numbers.of(settings, positions, DEVICE), ids).cpu()
    assert ((drawn >= 0) & (drawn < logits.shape[1])).all()
    if scale:
        assert (drawn == expected).float().mean() > 0.95  # a sum that is rounded otherwise may turn a close case
