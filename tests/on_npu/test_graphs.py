"""Graphs of torch_npu on the simulated NPU: what is captured is not done, and is done at every replay."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_npu
from tests.on_npu.conftest import since
from torch import Tensor


def capture(function: Callable[[], Any], **options: Any) -> tuple[torch.npu.NPUGraph, Any]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph, **options):
        result = function()
    return graph, result


def test_nothing_is_done_until_the_graph_is_replayed_and_then_every_time() -> None:
    x, total = torch.ones(2000).npu(), torch.zeros(2000).npu()
    graph, y = capture(lambda: total.add_(x) * 2)
    assert not total.any()
    for time in (1, 2, 3):
        graph.replay()
        assert y.eq(2 * time).all()
    x.fill_(10)
    graph.replay()
    assert y[0].item() == 2 * 13


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (lambda x: x.sum().item(), 107027),
        (lambda x: x.nonzero(), 107027),
        (lambda _: torch.npu.synchronize(), 107027),
        (lambda _: torch.npu.current_stream().synchronize(), 107027),
        (lambda x: x.cpu(), 107030),
        (lambda _: torch.ones(4).npu(), 107030),
    ],
)
def test_what_cannot_be_captured_is_refused_and_the_next_capture_works(
    what: Callable[[Tensor], Any], code: int
) -> None:
    x = torch.ones(4).npu()
    with pytest.raises(RuntimeError, match=f"error code is {code}"):
        capture(lambda: what(x))
    graph, y = capture(lambda: x * 3)
    graph.replay()
    assert y.tolist() == [3.0] * 4


@since("2.13", "a capture whose end fails is never over for the allocator")
def test_streams_join_a_capture_by_events_and_have_to_be_joined_again() -> None:
    x, side = torch.ones(4).npu(), torch.npu.Stream()

    def fork(join: bool) -> Tensor:
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            y = x + 1
        if join:
            main.wait_stream(side)
        return y

    with pytest.raises(RuntimeError, match="107025"):
        capture(lambda: fork(join=False))
    graph, y = capture(lambda: fork(join=True) * 2)
    graph.replay()
    assert y.tolist() == [4.0] * 4


@since("2.4", "AdamW is capturable with CUDA only")
def test_training_steps_in_a_graph_are_those_outside() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    model = torch.nn.Sequential(*layers).npu()
    eager = copy.deepcopy(model)
    x, target = torch.randn(5, 8).npu(), torch.randn(5, 4).npu()

    def step(which: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = torch.nn.functional.mse_loss(which(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    optimizers = [torch.optim.AdamW(network.parameters(), capturable=True) for network in (model, eager)]
    for network, optimizer in zip((model, eager), optimizers, strict=True):
        step(network, optimizer)  # makes gradients and states
    graph, loss = capture(lambda: step(model, optimizers[0]))
    for _ in range(4):
        graph.replay()
        torch.testing.assert_close(loss.cpu(), step(eager, optimizers[1]).cpu())
    for mine, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu())


@since("2.5", "they fail in torch_npu 2.4 itself, and torch 2.1 runs their backward pass on another stream")
def test_graphed_callables() -> None:
    module = torch.nn.Linear(8, 8).npu()
    eager = copy.deepcopy(module)
    graphed = torch.npu.make_graphed_callables(module, (torch.randn(4, 8).npu().requires_grad_(),))
    for _ in range(3):
        x = torch.randn(4, 8).npu()
        for network in (graphed, eager):
            network.zero_grad(set_to_none=True)
            network(x.clone().requires_grad_()).square().sum().backward()
        torch.testing.assert_close(module.weight.grad.cpu(), eager.weight.grad.cpu())


@since("2.6", "a graph draws no random numbers")
def test_random_numbers_go_on_from_replay_to_replay_as_without_a_graph() -> None:
    def draw() -> Tensor:
        return torch.nn.functional.dropout(torch.ones(1000, device="npu")) + torch.randn(1000, device="npu")

    graph, noise = capture(draw)
    torch.npu.manual_seed(7)
    eager = [draw().cpu() for _ in range(3)]
    torch.npu.manual_seed(7)
    for expected in eager:
        graph.replay()
        assert torch.equal(noise.cpu(), expected)
    assert not torch.equal(eager[0], eager[1])


@since("2.6", "a graph is not updated")
@pytest.mark.parametrize("update_first", [True, False])
def test_lengths_of_a_captured_attention_are_updated(update_first: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape).half().npu() for shape in ((2, 4, 1, 16), (4, 2, 128, 16), (4, 2, 128, 16)))
    table = torch.tensor([[0, 1], [2, 3]]).int().npu()

    def attend(query: Tensor, lengths: list[int]) -> Tensor:
        out, _ = torch_npu.npu_fused_infer_attention_score(
            query, k, v, num_heads=4, num_key_value_heads=2, input_layout="BNSD", scale=0.25, block_table=table,
            block_size=128, actual_seq_lengths_kv=lengths,
        )  # fmt: skip
        return out

    graph, out = capture(lambda: attend(attend(q, [1, 1]) * 2, [1, 1]), auto_dispatch_capture=True)
    for length in (1, 40, 130):
        lengths = [length, length + 1]
        if not update_first:  # the replay waits for the update where it needs it
            graph.replay()
        graph.update([{"actual_seq_lengths_kv": lengths}])
        if update_first:
            graph.replay()
        assert torch.equal(out.cpu(), attend(attend(q, lengths) * 2, lengths).cpu())


@since("2.6", "a graph has no functions of the host")
def test_host_functions_and_copies_from_pinned_memory_are_part_of_a_graph() -> None:
    host, device, seen = torch.ones(4).pin_memory(), torch.zeros(4).npu(), []
    stream = torch.npu.Stream()

    def body() -> None:
        device.copy_(host, non_blocking=True)
        torch.npu._launch_host_func(torch.npu.current_stream(), seen.append, "called")

    graph, _ = capture(body, stream=stream)
    assert not seen
    for value in (1.0, 5.0):
        host.fill_(value)
        graph.replay()
        torch.npu.synchronize()
        assert device.tolist() == [value] * 4
    assert seen == ["called", "called"]


def test_graphs_share_a_pool_and_give_it_back() -> None:
    torch.npu.empty_cache()
    before = torch.npu.memory_reserved()

    def use_graphs() -> None:
        x, pool = torch.ones(1 << 20).npu(), torch.npu.graph_pool_handle()
        graphs = [capture(lambda factor=factor: x * factor + 1, pool=pool) for factor in range(3)]
        for factor, (graph, y) in enumerate(graphs):
            graph.replay()
            assert y[-1].item() == factor + 1

    use_graphs()
    torch.npu.empty_cache()
    assert torch.npu.memory_reserved() <= before
