"""The next-token loss of the tasks sft and pt."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from npukit.llm.config.options import Config, TuningOptions
from npukit.llm.models.attention import for_attention
from npukit.llm.models.forward import stay_near
from npukit.llm.models.loss import Weighting, by_likelihood, by_uncertainty
from npukit.train.precision import choose_precision


def loss_of(model: nn.Module, batch: dict[str, Any], longest: int) -> Tensor:
    """Return the mean loss of a batch. `longest` is the maximum length of a row in any batch."""
    given = {**batch, "max_length": longest} if "cu_seqlens" in batch else batch
    loss: Tensor = model(**for_attention(given))
    return loss


def weighting(options: TuningOptions) -> Weighting | None:
    """Return the function that weights each token by the model's probabilities, or None for equal weights."""
    kinds = {
        "plain": None,
        "dft": by_likelihood,
        "asft": by_likelihood,
        "eaft": partial(by_uncertainty, power=options.loss_power),
    }
    return kinds[options.loss]


def stay_near_the_first(model: Any, tuned: Any, config: Config, device: torch.device) -> None:
    """Add the distance from the initial model for ASFT. This is the model without its adapter, or a copy."""
    if config.tuning.is_adapter:
        return stay_near(model, config.tuning.reference_weight, model, tuned.disable_adapter)
    first = copy.deepcopy(model).requires_grad_(False).eval()
    first.to(device, choose_precision(config.training, device).dtype)
    return stay_near(model, config.tuning.reference_weight, first, nullcontext)
