"""Optimizers besides Adam and SGD: torch's Muon, MuonClip, transformers' Adafactor, and those of other packages.

All of them need whole matrices, so parameters must not be sharded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from npukit.errors import NpukitError
from npukit.train.joined import Joined
from npukit.train.muon_clip import QUERIES_AND_KEYS, MuonClip
from npukit.train.options import TrainOptions

Named = list[tuple[str, nn.Parameter]]
NOT_MATRICES = ("embed", "lm_head", "wte", "wpe")  # tables, although they have two dimensions


def make_other(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """The optimizer that `options.optimizer` names, for all trainable parameters of the model.

    >>> make_other(model, TrainOptions(optimizer="muon", learning_rate=1e-3))
    """
    trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    try:
        return MAKERS[options.optimizer](model, trained, options)
    except TypeError as error:  # an option that it does not have
        raise NpukitError(f"training.optimizer_options do not fit {options.optimizer}: {error}.") from error


def is_other(name: str) -> bool:
    """Whether an optimizer is one of these."""
    return name in MAKERS


def _muon(_model: nn.Module, trained: Named, options: TrainOptions) -> torch.optim.Optimizer:
    """Muon for matrices and AdamW for the rest, with the same learning rate."""
    matrices = [value for name, value in trained if _is_matrix(name, value)]
    others = [value for name, value in trained if not _is_matrix(name, value)]
    if not matrices:
        raise NpukitError("training.optimizer muon trains matrices, and none of the trained parameters is a matrix.")
    rates: dict[str, Any] = {"lr": options.learning_rate, "weight_decay": options.weight_decay}
    muon = torch.optim.Muon(matrices, **rates, adjust_lr_fn="match_rms_adamw", **options.optimizer_options)
    adamw = torch.optim.AdamW(others, **rates, betas=options.betas, eps=options.epsilon) if others else None
    return Joined(muon, adamw) if adamw else muon


def _muonclip(model: nn.Module, trained: Named, options: TrainOptions) -> torch.optim.Optimizer:
    matrices = [(name, value) for name, value in trained if _is_matrix(name, value)]
    others = [value for name, value in trained if not _is_matrix(name, value)]
    clipped = [value for name, value in matrices if any(part in name.split(".") for part in QUERIES_AND_KEYS)]
    largest: Any = next((part.largest_score for part in model.modules() if hasattr(part, "largest_score")), None)
    if largest is None or not clipped:
        names = " and ".join(QUERIES_AND_KEYS)
        raise NpukitError(f"training.optimizer muonclip needs a language model whose {names} are trained: use muon.")
    return MuonClip(
        [value for _, value in matrices],
        clipped,
        others,
        largest,
        lr=options.learning_rate,
        weight_decay=options.weight_decay,
        **options.optimizer_options,
    )


def _is_matrix(name: str, value: nn.Parameter) -> bool:
    return value.dim() == 2 and not any(part in name for part in NOT_MATRICES)


def _adafactor(_model: nn.Module, trained: Named, options: TrainOptions) -> torch.optim.Optimizer:
    from transformers.optimization import Adafactor

    fixed = {"scale_parameter": False, "relative_step": False} | options.optimizer_options
    optimizer: torch.optim.Optimizer = Adafactor(_by_decay(trained, options), lr=options.learning_rate, **fixed)
    return optimizer


def _projected(package: str, name: str) -> Callable[..., torch.optim.Optimizer]:
    """GaLore and APOLLO, which project the gradients of the layers' matrices to a low rank."""

    def make(_model: nn.Module, trained: Named, options: TrainOptions) -> torch.optim.Optimizer:
        kind = getattr(_package(package), name)
        matrices = [value for key, value in trained if _is_matrix(key, value)]
        rest = [(key, value) for key, value in trained if not _is_matrix(key, value)]
        low_rank = {"params": matrices, "weight_decay": options.weight_decay, **options.optimizer_options}
        groups = [*_by_decay(rest, options), low_rank]
        optimizer: torch.optim.Optimizer = kind(
            groups, lr=options.learning_rate, betas=options.betas, eps=options.epsilon
        )
        return optimizer

    return make


def _adam_mini(model: nn.Module, trained: Named, options: TrainOptions) -> torch.optim.Optimizer:
    shape: Any = getattr(model, "config", None)
    optimizer: torch.optim.Optimizer = _package("adam-mini").Adam_mini(
        named_parameters=trained,
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.epsilon,
        weight_decay=options.weight_decay,
        model_sharding=False,
        dim=getattr(shape, "hidden_size", None),
        n_heads=getattr(shape, "num_attention_heads", None),
        n_kv_heads=getattr(shape, "num_key_value_heads", None),
        verbose=False,
    )
    return optimizer


def _eight_bit(_model: nn.Module, trained: Named, options: TrainOptions) -> torch.optim.Optimizer:
    kind = _package("bitsandbytes").optim.AdamW8bit
    rates: Mapping[str, Any] = {"lr": options.learning_rate, "betas": options.betas, "eps": options.epsilon}
    optimizer: torch.optim.Optimizer = kind(_by_decay(trained, options), **rates, **options.optimizer_options)
    return optimizer


def _by_decay(trained: Named, options: TrainOptions) -> list[dict[str, Any]]:
    groups = [
        {"params": [value for _, value in trained if (value.dim() >= 2) == decays], "weight_decay": decay}
        for decays, decay in ((True, options.weight_decay), (False, 0.0))
    ]
    return [group for group in groups if group["params"]]


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name.replace("-", "_"))
    except ImportError as error:
        raise NpukitError(f"training.optimizer needs a package: pip install {name} ({error}).") from error


MAKERS: dict[str, Callable[[nn.Module, Named, TrainOptions], torch.optim.Optimizer]] = {
    "muon": _muon,
    "muonclip": _muonclip,
    "adafactor": _adafactor,
    "galore": _projected("galore-torch", "GaLoreAdamW"),
    "apollo": _projected("apollo-torch", "APOLLOAdamW"),
    "adam_mini": _adam_mini,
    "adamw_8bit": _eight_bit,
}
