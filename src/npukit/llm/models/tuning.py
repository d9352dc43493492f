"""Choose which parts of a model are trained: an adapter, everything, or its last layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from npukit.errors import NpukitError
from npukit.llm import families
from npukit.llm.config.options import ModelOptions, TuningOptions
from npukit.llm.families.vision import GridVision
from npukit.llm.models.bottleneck import add_bottlenecks, load_bottlenecks
from npukit.llm.models.layers import grow
from npukit.llm.models.outline import is_target
from npukit.train.blocks import blocks
from npukit.train.optimizer import Groups


def tune(
    model: Any, options: TuningOptions, loaded: ModelOptions, gradients: Callable[[Any], None] | None = None
) -> Any:
    """The model, prepared for training with the options; `gradients` computes gradients of some rows for lora_ga.

    >>> tune(model, TuningOptions(method="lora", rank=16), ModelOptions(path="…")).print_trainable_parameters()
    """
    if options.noise:
        model.get_input_embeddings().register_forward_hook(partial(_noisy, alpha=options.noise))
    if options.method == "bottleneck":
        if loaded.adapter:
            load_bottlenecks(model, loaded.adapter.expanduser())
        else:
            add_bottlenecks(model, layers_of(model), options.rank, options.activation)
        return model
    if options.is_adapter:
        tuned = _with_adapter(model, options, loaded, gradients)
        for name, parameter in tuned.named_parameters() if options.whole_tower else ():
            if _is_unused(_plain(name), model):
                parameter.requires_grad_(False)
        for module in tuned.modules():
            _train_in_fp32(module)
        return tuned
    if options.turns == "badam":
        _train_only(layers_of(model), model)
    if options.new_layers:
        _train_only(grow(model, options.new_layers), model)
    elif options.method == "freeze":
        _train_only(_chosen_parts(layers_of(model), options), model)
    for name, parameter in model.named_parameters() if families.vision_of(model.config) else ():
        if is_frozen(name, model, options):
            parameter.requires_grad_(False)
    return model


def _train_only(parts: list[Any], model: Any) -> None:
    model.requires_grad_(False)
    for part in parts:
        part.requires_grad_(True)


def _chosen_parts(layers: list[Any], options: TuningOptions) -> list[Any]:
    """Return the modules that method freeze trains: some of the layers, or parts of these."""
    if abs(options.layers) > len(layers):
        raise NpukitError(f"tuning.layers is {options.layers}, but this model has {len(layers)} layers: lower it.")
    chosen = layers[-options.layers :] if options.layers > 0 else layers[: -options.layers]
    if options.spread:
        if options.layers < 1 or len(layers) % options.layers:
            raise NpukitError(f"tuning.layers must divide the model's {len(layers)} layers, not {options.layers}.")
        distance = len(layers) // options.layers
        chosen = layers[distance - 1 :: distance]
    if not options.layer_modules:
        return chosen
    names = options.layer_modules
    parts = [part for layer in chosen for name, part in layer.named_modules() if name.split(".")[0] in names]
    if not parts:
        raise NpukitError(f"tuning.layer_modules: no layer has a module {' or '.join(names)}.")
    return parts


def layers_of(model: Any) -> list[Any]:
    """The layers of a language model, without those of a tower."""
    return blocks(model.get_decoder() if families.vision_of(model.config) else model)


def layers_of_tower(model: Any) -> list[Any]:
    """The layers of a tower that supports segments of any length; none for other towers."""
    vision = families.vision_of(model.config)
    if not isinstance(vision, GridVision):
        return []
    return [layer for name in vision.tower for layer in blocks(model.get_submodule(name))]


def compute_again() -> None:
    """Make layers that are compiled from now on keep the results of matrix products and attention, and recompute norms
    and activations from them in the backward pass. With an adapter, those are a third of what would be kept.
    """
    from torch._functorch import config

    config.ban_recompute_used_far_apart = False
    config.ban_recompute_long_fusible_chains = False
    config.ban_recompute_materialized_backward = False


def is_frozen(name: str, model: Any, options: TuningOptions) -> bool:
    """Whether a parameter or module belongs to a frozen part of the model."""
    vision = families.vision_of(model.config)
    part = vision.part_of(name) if vision else None
    if _is_unused(name, model):
        return True
    return part is not None and bool(getattr(options, f"freeze_{part}"))


def _is_unused(name: str, model: Any) -> bool:
    """Whether no feature of an image depends on a parameter."""
    vision = families.vision_of(model.config)
    return vision is not None and vision.is_unused(model.config, name)


def _plain(name: str) -> str:
    """A parameter's name without the adapter around it."""
    return name.removeprefix("base_model.model.").replace(".modules_to_save.default.", ".")


def _whole_parts(model: Any) -> list[str]:
    """The tower and the projector, as modules that are copied and trained completely in addition to an adapter."""
    vision = families.vision_of(model.config)
    names = [*vision.tower, *vision.projector] if vision else []
    there = [name for name, _ in model.named_modules() if name in names]
    return [name for name in there if not any(name.startswith(f"{other}.") for other in there)]


def _noisy(table: Any, _args: Any, embedded: Any, alpha: float) -> Any:
    """NEFTune: uniform noise that decreases with the square root of a row's number of elements."""
    if not table.training:
        return embedded
    size = alpha / (embedded.shape[1] * embedded.shape[2]) ** 0.5
    return embedded + torch.empty_like(embedded).uniform_(-size, size)


def rate_groups(model: Any, options: TuningOptions, learning_rate: float, weight_decay: float) -> Groups | None:
    """Parameters by learning rate, for rates that differ; None if there is only one.

    LoRA+ has a higher one for the second matrices; parts of a vision-language model may have their own.
    """
    vision = families.vision_of(model.config)
    own = {"vision_tower": options.vision_tower_rate, "projector": options.projector_rate} if vision else {}
    if options.plus_ratio is None and not any(own.values()):
        return None
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, value in model.named_parameters():
        part = vision.part_of(_plain(name)) if vision else None
        rate = own.get(part or "") or learning_rate
        if options.plus_ratio and "lora_B" in name:
            rate *= options.plus_ratio
        decays = value.dim() >= 2
        if value.requires_grad:
            empty = {"params": [], "lr": rate, "weight_decay": weight_decay if decays else 0.0}
            groups.setdefault((rate, decays), empty)["params"].append(value)
    return list(groups.values())


def _with_adapter(
    model: Any, options: TuningOptions, loaded: ModelOptions, gradients: Callable[[Any], None] | None
) -> Any:
    from peft import LoraConfig, PeftModel, get_peft_model, preprocess_loraga

    if loaded.adapter:
        return PeftModel.from_pretrained(model, str(loaded.adapter), is_trainable=True)
    wanted, sees = options.targets, families.vision_of(model.config) is not None
    if wanted == "all-linear" and (options.dropout or gradients or sees):
        wanted = ("all-linear",)  # PEFT's also selects a MoE's experts, which support neither, and a frozen tower
    targets = wanted if isinstance(wanted, str) else _expanded(model, wanted)
    whole = _whole_parts(model) if options.whole_tower else []
    if sees:
        modules = model.named_modules()
        targets = [name for name, part in modules if _is_wanted(name, part, targets, model, options)]
        targets = [name for name in targets if not name.startswith(tuple(f"{tower}." for tower in whole))]
    if not any(is_target(name, options.targets) for name, _ in model.named_modules()):
        names = sorted({name.rpartition(".")[2] for name, part in model.named_modules() if _is_linear(part)})
        raise NpukitError(f"tuning.targets matches no module of this model: use all-linear, or {', '.join(names)}.")
    if options.method != "lora":
        tuned = get_peft_model(model, _other_adapter(options, targets))
        if options.method == "adalora":
            _regularise(tuned)
        return tuned
    _refuse_unknown(options, LoraConfig)
    own: dict[str, Any] = {
        "task_type": "CAUSAL_LM" if model.get_output_embeddings() is not None else "SEQ_CLS",
        "r": options.rank,
        "lora_alpha": options.alpha or 2 * options.rank,
        "lora_dropout": options.dropout,
        "target_modules": targets,
        "use_rslora": options.rslora,
        "use_dora": options.dora,
        "bias": options.bias,
        "init_lora_weights": options.init,
        "modules_to_save": [*options.modules_to_save, *whole] or None,
    }
    try:
        config = LoraConfig(**own | ({"lora_ga_config": {}} if gradients else {}) | options.peft)
        if gradients:
            preprocess_loraga(model, config, partial(gradients, model))
        return get_peft_model(model, config)
    except ValueError as error:  # such as dropout on the experts of a MoE
        raise NpukitError(f"PEFT refuses this adapter (tuning.targets, tuning.dropout): {error}") from error


def _is_wanted(name: str, part: Any, targets: str | list[str], model: Any, options: TuningOptions) -> bool:
    chosen = is_target(name, targets if isinstance(targets, str) else tuple(targets))
    return chosen and _is_linear(part) and not is_frozen(name, model, options)


def _expanded(model: Any, targets: tuple[str, ...]) -> list[str]:
    """The names, with all-linear replaced by those of all linear modules except the output layer."""
    if "all-linear" not in targets:
        return list(targets)
    head = model.get_output_embeddings()
    linear = [name for name, part in model.named_modules() if _is_linear(part) and part is not head]
    return [*linear, *(name for name in targets if name != "all-linear")]


def _refuse_unknown(options: TuningOptions, kind: Any) -> set[str]:
    """The options of a PEFT configuration. Any other option is a mistake."""
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(options.peft) - known):
        raise NpukitError(f"tuning.peft: PEFT's {options.method} has no option {', '.join(unknown)}.")
    return known


def _other_adapter(options: TuningOptions, targets: str | list[str]) -> Any:
    """PEFT's configuration of an adapter other than LoRA: common options by our names, the others passed on."""
    from peft import PeftType
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING as KINDS

    kind = KINDS[PeftType(options.method.upper())]
    known = _refuse_unknown(options, kind)
    common: dict[str, Any] = {"r": options.rank, "target_modules": targets, "task_type": "CAUSAL_LM"}
    if options.method == "adalora":
        common |= {"r": 8, "total_step": 2**31}  # its ranks are target_r and init_r; its steps are known later
    common["modules_to_save"] = list(options.modules_to_save) or None
    if {"r", "oft_block_size"} <= known and options.peft.get("oft_block_size"):
        common["r"] = 0  # PEFT accepts only one of the two
    return kind(**{name: value for name, value in common.items() if name in known} | options.peft)


def _regularise(tuned: Any) -> None:
    """Add AdaLoRA's orthogonality term, which PEFT adds only to outputs with a loss attribute."""
    taught, adapter = tuned.base_model.model, tuned.base_model
    plain, with_more = taught.forward, adapter.forward

    def forward(*args: Any, **batch: Any) -> Any:
        output = plain(*args, **batch)
        is_loss = isinstance(output, torch.Tensor) and output.dim() == 0
        return SimpleNamespace(loss=output) if is_loss else output

    def unwrapped(*args: Any, **batch: Any) -> Any:
        output = with_more(*args, **batch)
        return output.loss if isinstance(output, SimpleNamespace) else output

    taught.forward, adapter.forward = forward, unwrapped


def _train_in_fp32(module: Any) -> None:
    """Keep trained weights of the model itself in fp32, since small steps are lost in 16 bits. A norm has one dtype."""
    own = list(module.parameters(recurse=False))
    if any(parameter.requires_grad for parameter in own):
        for parameter in own:
            if parameter.requires_grad or parameter.dim() == 1:
                parameter.data = parameter.data.float()


def _is_linear(module: Any) -> bool:
    return type(module).__name__ in ("Linear", "QuantizedLinear", "Conv1D")
