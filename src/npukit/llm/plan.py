"""What a run would do, before anything is loaded: the memory it needs on each device, and its steps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil, prod
from typing import Any

from npukit.llm.config.options import Config
from npukit.llm.data.count import Rows, count_rows
from npukit.llm.models.outline import Outline, is_target, look_at

GIB = 2**30
LOGITS_AT_ONCE = 1024  # rows of logits that the loss makes at a time
LOGITS_BYTES = 12  # of each: the product, its probabilities and their gradient in fp32


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, part by part."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits


@dataclass(frozen=True)
class Plan:
    """The answer to --dry-run; what is not known is None."""

    config: dict[str, Any]
    devices: int
    parameters: int | None
    trained: int | None
    memory: Memory | None
    rows: int | None
    rows_are_exact: bool
    batches_per_epoch: int | None
    steps: int | None
    tokens_per_step: int

    def as_json(self) -> dict[str, Any]:
        """For programs; memory in bytes."""
        return asdict(self) | {"memory": asdict(self.memory) | {"total": self.memory.total} if self.memory else None}


def plan(config: Config, devices: int) -> Plan:
    """Look at the files that `config` names and work out what training with it on `devices` devices takes."""
    model = look_at(config.model)
    rows = count_rows(config)
    batches = _rows_of_batches(config, rows)
    rows_per_step = config.training.batch_size * config.training.accumulation * devices
    steps = config.training.max_steps
    if steps is None and batches is not None:
        steps = ceil(ceil(batches / rows_per_step) * config.training.epochs)
    return Plan(
        config=config.model_dump(mode="json"),
        devices=devices,
        parameters=model.parameters if model else None,
        trained=trained_parameters(config, model) if model else None,
        memory=memory(config, model, devices) if model else None,
        rows=rows.count if rows else None,
        rows_are_exact=bool(rows and rows.exact),
        batches_per_epoch=batches,
        steps=steps,
        tokens_per_step=rows_per_step * _row_length(config),
    )


def _row_length(config: Config) -> int:
    return (config.data.pack_length or config.data.cutoff) if config.data.packing else config.data.cutoff


def _rows_of_batches(config: Config, rows: Rows | None) -> int | None:
    """How many rows an epoch has once they are packed, and those for validation are set apart."""
    if rows is None:
        return None
    part = config.data.validation
    apart = 0 if isinstance(part, tuple) else int(rows.count * part) if part < 1 else int(part)
    left = max(1, rows.count - apart)
    return max(1, ceil(left * rows.tokens / _row_length(config))) if config.data.packing else left


def trained_parameters(config: Config, model: Outline) -> int:
    """How many parameters change."""
    tuning = config.tuning
    if tuning.method == "full":
        return model.parameters
    if tuning.method == "freeze":
        return model.of_layers(tuning.layers)
    targets = [shape for name, shape in model.linear().items() if is_target(name, tuning.targets)]
    saved = [
        prod(shape)
        for name, shape in model.shapes.items()
        if any(part in name.split(".") for part in tuning.modules_to_save)
    ]
    return sum((sum(shape) + tuning.dora) * tuning.rank for shape in targets) + sum(saved)


def memory(config: Config, model: Outline, devices: int) -> Memory:
    """An estimate: measured runs were within a tenth of it."""
    training = config.training
    trained = trained_parameters(config, model)
    lora = config.tuning.method == "lora"
    low = 4 if training.precision == "fp32" else 2
    kept = {"float32": 4, "bfloat16": 2, "float16": 2}.get(config.model.dtype, low if lora else 4)
    states = {"adamw": 8, "adam": 8, "sgd": 4 if training.momentum else 0}[training.optimizer]
    stage = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp2": 3}.get(str(training.parallel), 0)
    deepspeed = stage >= 1 and training.parallel != "fsdp2"
    weights = model.parameters * kept + (trained * 4 if lora else 0)
    gradients, optimizer = trained * 4.0, trained * states * 1.0
    if deepspeed:  # it keeps the weights in 16 bits and a copy of what is trained in 32
        weights, gradients = model.parameters * low + (trained * low if lora else 0), trained * low * 1.0
        optimizer += trained * 4
    largest_layer = model.of_layers(1) * low
    return Memory(
        weights=weights / devices + largest_layer if stage == 3 and devices > 1 else float(weights),
        gradients=gradients / (devices if stage >= 2 else 1),
        optimizer=0.0 if training.offload else optimizer / (devices if stage >= 1 else 1),
        activations=_activations(config, model, low),
        logits=float(LOGITS_AT_ONCE * model.sizes.vocabulary * LOGITS_BYTES),
    )


def _activations(config: Config, model: Outline, low: int) -> float:
    """What the backward pass needs again. Attention keeps no matrix of scores; norms keep fp32."""
    tokens = config.training.batch_size * _row_length(config)
    sizes = model.sizes
    of_a_layer = low * (7 * sizes.hidden + 2 * sizes.keys + 4 * sizes.intermediate) + 8 * sizes.hidden
    if config.training.activation_checkpointing:
        return float(tokens * (sizes.layers * sizes.hidden * low + of_a_layer))
    return float(tokens * sizes.layers * of_a_layer)


def as_text(found: Plan) -> str:
    """The plan for people: the configuration as YAML that can be run again, then figures as comments."""
    import yaml

    lines = [yaml.safe_dump(found.config, sort_keys=False, allow_unicode=True, width=100).rstrip(), ""]
    if found.memory and found.parameters and found.trained is not None:
        share = 100 * found.trained / found.parameters
        lines.append(f"# {found.parameters:,} parameters, {found.trained:,} of them trained ({share:.2f}%)")
        parts = asdict(found.memory)
        where = "the device" if found.devices == 1 else f"each of {found.devices} devices"
        lines.append(f"# about {_size(found.memory.total).strip()} on {where}:")
        lines += [f"#   {_size(size)}  {PARTS[name]}" for name, size in parts.items()]
    else:
        lines.append("# memory unknown: the model is not in a local folder, or of a family that npukit does not know")
    lines.append("# " + _steps_in_words(found))
    return "\n".join(lines)


def _size(count: float) -> str:
    return f"{count / GIB:6.1f} GiB" if count >= GIB else f"{count / 2**20:6.1f} MiB"


PARTS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations, if every row has the maximum length",
    "logits": "logits, computed in chunks",
}


def _steps_in_words(found: Plan) -> str:
    if found.steps is None:
        return "number of steps unknown: the data is not in local files"
    per_step = f"up to {found.tokens_per_step:,} tokens each"
    if found.rows is None:
        return f"{found.steps} steps, {per_step}"
    about = "" if found.rows_are_exact else "about "
    packed = found.config["data"]["packing"]
    into = f", packed into about {found.batches_per_epoch:,}" if packed else ""
    return f"{about if not packed else 'about '}{found.steps:,} steps, {per_step}; {about}{found.rows:,} rows{into}"
