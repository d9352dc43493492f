"""Choose what of a model is trained: an adapter, everything, or its last layers."""

from __future__ import annotations

from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.options import ModelOptions, TuningOptions
from npukit.llm.models.outline import is_target
from npukit.train.blocks import blocks


def tune(model: Any, options: TuningOptions, loaded: ModelOptions) -> Any:
    """The model, ready to be trained as the options say.

    >>> tune(model, TuningOptions(method="lora", rank=16), ModelOptions(path="…")).print_trainable_parameters()
    """
    if options.method == "lora":
        tuned = _with_adapter(model, options, loaded)
        for module in tuned.modules():
            _train_in_fp32(module)
        return tuned
    if options.method == "freeze":
        layers = blocks(model)
        if options.layers > len(layers):
            raise NpukitError(f"tuning.layers is {options.layers}, but this model has {len(layers)} layers: lower it.")
        model.requires_grad_(False)
        for layer in layers[-options.layers :]:
            layer.requires_grad_(True)
    return model


def _with_adapter(model: Any, options: TuningOptions, loaded: ModelOptions) -> Any:
    from peft import LoraConfig, PeftModel, get_peft_model

    if loaded.adapter:
        return PeftModel.from_pretrained(model, str(loaded.adapter), is_trainable=True)
    targets = options.targets if isinstance(options.targets, str) else list(options.targets)
    config = LoraConfig(
        task_type="SEQ_CLS" if hasattr(model, "score") else "CAUSAL_LM",
        r=options.rank,
        lora_alpha=options.alpha or 2 * options.rank,
        lora_dropout=options.dropout,
        target_modules=targets,
        use_rslora=options.rslora,
        use_dora=options.dora,
        bias=options.bias,
        init_lora_weights=options.init,
        modules_to_save=list(options.modules_to_save) or None,
    )
    if not any(is_target(name, options.targets) for name, _ in model.named_modules()):
        names = sorted({name.rpartition(".")[2] for name, part in model.named_modules() if _is_linear(part)})
        raise NpukitError(f"tuning.targets matches no module of this model: use all-linear, or {', '.join(names)}.")
    return get_peft_model(model, config)


def _train_in_fp32(module: Any) -> None:
    """What is trained of the model itself, a bias say: in 16 bits small steps are lost. A norm is all of one type."""
    own = list(module.parameters(recurse=False))
    if any(parameter.requires_grad for parameter in own):
        for parameter in own:
            if parameter.requires_grad or parameter.dim() == 1:
                parameter.data = parameter.data.float()


def _is_linear(module: Any) -> bool:
    return type(module).__name__ in ("Linear", "Conv1D")
