"""Runs a script in a comparable way: with fixed seeds and random numbers, recording what it computes.

Run as `python -m npukit.verify.observe OPTIONS_AS_JSON SCRIPT|-m MODULE [ARGS]`, in the project's folder.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from npukit.launch.script import run_command
from npukit.shim.children import run_first_in_spawned

SEED = 1234


def main() -> None:
    options = json.loads(sys.argv[1])
    arguments = sys.argv[2:]
    if os.environ.get("RANK", "0") != "0":
        options["watch"] = ""
    prepare(options)
    is_module = arguments[0] == "-m"
    sys.path[0] = str(Path.cwd() if is_module else Path(arguments[0]).resolve().parent)
    run_command(arguments)


def prepare(options: dict[str, Any]) -> None:
    """Make this process and those that it spawns comparable."""
    import torch

    if options["cuda_is_cpu"]:
        from npukit.shim import to_cpu

        to_cpu.apply(options["devices"])
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)
    torch.manual_seed(SEED)
    draw_on_cpu()
    if options["port"]:
        meet_at(options["port"])
    if options["watch"]:
        from npukit.verify.watch import ProcessWatch

        ProcessWatch(Path(options["watch"])).begin()
    run_first_in_spawned(f"from npukit.verify.observe import prepare; prepare({options!r})")


def meet_at(port: int) -> None:
    """Make the processes of a group meet at this free port, whatever the script says."""
    import importlib

    # The package also has a function with this name
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    store = rendezvous.TCPStore

    @functools.wraps(store)
    def at_free_port(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1:  # (host, port, ...)
            return store(args[0], port, *args[2:], **kwargs)
        return store(*args, **{**kwargs, "port": port})

    rendezvous.TCPStore = at_free_port  # type: ignore[attr-defined]


def draw_on_cpu() -> None:
    """Draw every random number with the CPU's generator: weights, noise and dropout are the same on all devices."""
    import torch
    import torch.nn.functional as F

    for name in ("rand", "randn", "randint", "randperm", "normal"):
        setattr(torch, name, _made_on_cpu(getattr(torch, name)))
    for name in ("rand_like", "randn_like", "randint_like", "bernoulli", "multinomial"):
        setattr(torch, name, _taken_to_cpu(getattr(torch, name)))
    tensor: Any = torch.Tensor
    for name in ("multinomial", "bernoulli"):
        setattr(tensor, name, _taken_to_cpu(getattr(tensor, name)))
    for name in ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "log_normal_"):
        setattr(tensor, name, _filled_on_cpu(getattr(tensor, name)))
    functional: Any = F
    functional.dropout = _dropout
    for name, dimensions in (("dropout1d", 1), ("dropout2d", 2), ("dropout3d", 3)):
        setattr(functional, name, functools.partial(_channel_dropout, dimensions))
    functional.scaled_dot_product_attention = _attention_with_dropout(F.scaled_dot_product_attention)


def _made_on_cpu(function: Any) -> Any:
    import torch

    @functools.wraps(function)
    def made(*args: Any, device: Any = None, generator: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        if any(isinstance(value, torch.Tensor) for value in args):
            return _taken_to_cpu(function)(*args, **kwargs)
        if generator is not None and generator.device.type == "cpu":
            kwargs["generator"] = generator
        drawn = function(*args, device="cpu", **kwargs).to(torch.get_default_device() if device is None else device)
        return drawn.requires_grad_() if requires_grad else drawn  # last, so that it is a leaf

    return made


def _taken_to_cpu(function: Any) -> Any:
    import torch

    @functools.wraps(function)
    def drawn(*args: Any, device: Any = None, generator: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
        place = device  # 0 is a device too
        if device is None:
            place = next(value.device for value in args if isinstance(value, torch.Tensor))
        if generator is not None and generator.device.type == "cpu":
            kwargs["generator"] = generator
        args = tuple(value.cpu() if isinstance(value, torch.Tensor) else value for value in args)
        result = function(*args, **kwargs).to(place)
        return result.requires_grad_() if requires_grad else result

    return drawn


def _filled_on_cpu(function: Any) -> Any:
    import torch

    @functools.wraps(function)
    def filled(self: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if self.device.type in ("cpu", "meta"):
            return function(self, *args, generator=generator, **kwargs)
        values = torch.empty_like(self, device="cpu", memory_format=torch.contiguous_format)
        args = tuple(value.cpu() if isinstance(value, torch.Tensor) else value for value in args)
        function(values, *args, **kwargs)
        with torch.no_grad():
            return self.copy_(values)

    return filled


def _attention_with_dropout(attention: Any) -> Any:
    """Attention with dropout as torch defines it, with the CPU's random numbers."""
    import torch

    @functools.wraps(attention)
    def attend(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kw: Any,
    ) -> Any:
        if not dropout_p:
            return attention(query, key, value, attn_mask, dropout_p, is_causal, **kw)
        if kw.get("enable_gqa"):
            key, value = (tensor.repeat_interleave(query.size(-3) // tensor.size(-3), -3) for tensor in (key, value))
        scores = query @ key.mT * (kw.get("scale") or query.size(-1) ** -0.5)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            is_bool = attn_mask.dtype is torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
        return _dropout(scores.softmax(-1), dropout_p) @ value

    return attend


def _channel_dropout(dimensions: int, input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """dropout1d, dropout2d and dropout3d, which drop whole channels.

    Only the first and last support inputs without a batch; dropout2d takes the first dimension as one.
    """
    one_each = 1 if dimensions != 2 and input.dim() == dimensions + 1 else 2
    return _dropout(input, p, training, inplace, (*input.shape[:one_each], *(1 for _ in input.shape[one_each:])))


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, shape: Any = None) -> Any:
    """torch.nn.functional.dropout with a mask drawn on the CPU."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    if not training or p == 0:
        return input
    with _disable_current_modes():  # the mask is not part of the record
        keep = torch.empty(shape or input.shape).bernoulli_(1 - p).to(input.device, input.dtype)
        scaled = keep if p == 1 else keep / (1 - p)
    return input.mul_(scaled) if inplace else input * scaled


if __name__ == "__main__":
    main()
