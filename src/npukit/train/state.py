"""The state that a rank needs to resume exactly: trainable weights, optimizer, random numbers.

It consists of plain containers, numbers and tensors in host memory, so that reading it runs no code. A rank that holds
a shard saves its own shard.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities
from npukit.train.shards import local


def weights(model: nn.Module, frozen: bool) -> dict[str, Tensor]:
    """The trainable parameters, with `frozen` also the frozen ones, and all buffers, under all their names."""
    return {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()
        if frozen or value.requires_grad or not isinstance(value, nn.Parameter)
    }


def copies(tensors: dict[str, Tensor], copy: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """A copy of each tensor; one with several names is copied once."""
    once = {id(value): copy(value) for value in {id(value): value for value in tensors.values()}.values()}
    return {name: once[id(value)] for name, value in tensors.items()}


def load_model_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Restore the trainable parameters and all buffers; frozen parameters keep the values of the model."""
    places = {name: local(value) for name, value in weights(model, frozen=False).items()}
    shapes = [{name: tuple(value.shape) for name, value in of.items()} for of in (places, state)]
    if different := sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()}):
        raise NpukitError(
            f"The checkpoint belongs to another model, or to one with other frozen weights: {', '.join(different[:3])} "
            "differ. Use the same model, or choose another output folder to start over."
        )
    for name, value in state.items():
        places[name].copy_(value)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state = optimizer.state_dict()
    # Anything else, such as GaLore's projections, is computed again by the optimizer.
    own = {
        number: {name: host_copy(value) for name, value in of.items() if isinstance(value, Tensor | int | float | str)}
        for number, of in state["state"].items()
    }
    # Only the parameters of the groups: their settings are those of the resumed run.
    return {"state": own, "groups": [group["params"] for group in state["param_groups"]]}


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore the state of its parameters; learning rate, decay and other settings are this run's."""
    groups = optimizer.state_dict()["param_groups"]
    if [group["params"] for group in groups] != state["groups"]:
        raise NpukitError(
            "The optimizer in the checkpoint has different parameter groups: use the same parameter_groups, or "
            "choose another output folder to start over."
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = {
        number: {name: _like(value, parameters[number]) for name, value in of.items()}
        for number, of in state["state"].items()
    }
    optimizer.load_state_dict({"state": own, "param_groups": groups})


def random_state(device: torch.device) -> dict[str, Any]:
    """The state of all random number generators."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.asarray(keys)), *rest],
        "torch": torch.get_rng_state(),
    }
    if abilities(device).own_memory:
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    return state


def load_random_state(state: dict[str, Any], device: torch.device) -> None:
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy(), *rest))
    torch.set_rng_state(state["torch"])
    if "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"], device)


def host_copy(value: Any) -> Any:
    """A copy of a tensor, or of this rank's shard, in host memory."""
    return local(value).to("cpu", copy=True) if isinstance(value, Tensor) else value


def _like(value: Any, parameter: Tensor) -> Any:
    """Turns a shard of an optimizer's state into a sharded tensor again."""
    if not isinstance(parameter, DTensor) or not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return DTensor.from_local(
        value.to(local(parameter).device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
