import torch


def test_it_computes_on_the_device_that_is_there() -> None:
    device = "npu" if hasattr(torch, "npu") else "cpu"
    assert (torch.ones(2, device=device) + 1).sum().item() == 4
