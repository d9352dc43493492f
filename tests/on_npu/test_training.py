"""Ways of training that take their own way through torch_npu."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.on_npu.conftest import since
from torch import nn

from npukit.train.optimizer import make_optimizer, parameter_groups
from npukit.train.options import TrainOptions


@since("2.4", "there are no sparse tensors of its own")
def test_sparse_adam_ends_with_the_cpus_weights() -> None:
    torch.manual_seed(0)
    first = nn.Embedding(10, 4, sparse=True)
    ended = []
    for device in ("cpu", "npu"):
        embedding = nn.Embedding(10, 4, sparse=True)
        embedding.load_state_dict(first.state_dict())
        embedding.to(device)
        optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
        for _ in range(3):
            embedding(torch.tensor([1, 2, 2, 5], device=device)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ended.append(embedding.weight.detach().cpu())
    assert not torch.equal(ended[0], first.weight)
    torch.testing.assert_close(*ended)


def test_parameters_that_are_joined_in_the_forward_are_trained_by_the_fused_optimizer() -> None:
    """Their gradients are parts of one tensor."""
    first, ended = [torch.randn(3, 4), torch.randn(2, 4)], []
    for device in ("cpu", "npu"):
        parts = nn.ParameterList(part.clone() for part in first).to(device)
        groups = parameter_groups(parts, weight_decay=0.0)
        options = TrainOptions(output=Path("unused"), optimizer="sgd", learning_rate=0.1)
        optimizer = make_optimizer(groups, options, torch.device(device), sharded=False)
        for _ in range(3):
            torch.cat(list(parts)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ended.append([part.detach().cpu() for part in parts])
    assert not torch.equal(ended[0][0], first[0])
    torch.testing.assert_close(*ended)


def test_a_compiled_function_that_makes_its_own_tensors() -> None:
    @torch.compile
    def mask(size: int) -> torch.Tensor:
        return torch.arange(size, device="npu")[:, None] >= torch.arange(size, device="npu")

    assert torch.equal(mask(4).cpu(), torch.ones(4, 4).tril().bool())


def test_repeating_each_element_can_be_captured() -> None:
    x = torch.randn(3, device="npu")
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        repeated = x.repeat_interleave(2)
    graph.replay()
    assert torch.equal(repeated.cpu(), x.cpu().repeat_interleave(2))


def test_a_loss_scaler_finds_what_is_not_finite() -> None:
    grads = [torch.tensor([2.0, 4.0]).npu(), torch.tensor([1.0, float("inf")]).npu()]
    actual = torch.zeros(1).npu()
    torch._amp_foreach_non_finite_check_and_unscale_(grads, actual, torch.tensor(0.5).npu())
    assert actual.item() == 1
    assert [grad.tolist() for grad in grads] == [[1, 2], [0.5, float("inf")]]
