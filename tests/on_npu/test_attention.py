"""F.scaled_dot_product_attention on NPU tensors, against the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 1), (1, 5), (3, 3)])
def test_one_batch_stands_for_all(queries: int, keys: int, causal: bool) -> None:
    torch.manual_seed(0)
    given = [torch.randn(batch, heads, 16, 8) for batch, heads in ((queries, 4), (keys, 2), (keys, 2))]
    found = []
    for device in ("cpu", "npu"):
        leaves = [x.to(device, copy=True).requires_grad_() for x in given]
        out = F.scaled_dot_product_attention(*leaves, is_causal=causal, enable_gqa=True)
        found.append([x.detach().cpu() for x in (out, *torch.autograd.grad(out.square().sum(), leaves))])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
