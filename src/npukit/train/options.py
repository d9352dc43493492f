"""Everything that can be chosen about a training run, whatever the model."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticKnownError
from pydantic_core.core_schema import no_info_after_validator_function

from npukit.errors import NpukitError
from npukit.train.mistakes import sentences

Fraction = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Logger = Literal["tensorboard", "wandb", "swanlab", "mlflow"]
Optimizer = Literal[
    "adamw", "adam", "sgd", "adafactor", "muon", "muonclip", "galore", "apollo", "adam_mini", "adamw_8bit"
]


@dataclass(frozen=True)
class When:
    """An option has an effect only while another one has this value, or one of these."""

    key: str
    value: str | bool | tuple[str, ...] | Callable[[], tuple[str, ...]]

    @property
    def values(self) -> tuple[str | bool, ...]:
        """The values of the other option with which this one has an effect."""
        value = self.value() if callable(self.value) else self.value
        return value if isinstance(value, tuple) else (value,)


@dataclass(frozen=True)
class Needs:
    """Packages that npukit does not bring, by the value of an option that asks for one; `path` is for a file's."""

    packages: Mapping[str, str]
    path: str | None = None

    def of(self, value: Any) -> str | None:
        """The package, by the name that it is imported by.

        >>> Needs({"galore": "galore_torch"}).of("galore")
        'galore_torch'
        """
        return self.path if isinstance(value, Path) else self.packages.get(str(value))


@dataclass(frozen=True)
class Called:
    """What other tools call an option, where they mean by its values what we do; True is the same name.

    Keys that need more than another name stand in the tables of llm/config/dialects.
    """

    transformers: str | tuple[str, ...] | bool = ()  # TrainingArguments, which LLaMA-Factory and ms-swift share
    llama_factory: str | tuple[str, ...] | bool = ()
    swift: str | tuple[str, ...] | bool = ()

    def by(self, tool: str, name: str) -> tuple[str, ...]:
        """The names that a tool has for the option of this name.

        >>> Called(llama_factory="lora_rank", swift=True).by("swift", "rank")
        ('rank',)
        """
        names = getattr(self, tool)
        return (name,) if names is True else (names,) if isinstance(names, str) else names or ()


@dataclass(frozen=True)
class Choices:
    """A text that is one of these words, each with what it means; they are known when they are asked for."""

    words: Callable[[], Mapping[str, str]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "enum": list(self.words())}

    def _check(self, word: str) -> str:
        if word in self.words():
            return word
        raise PydanticKnownError("literal_error", {"expected": ", ".join(self.words())})


def _as_list(value: Any) -> Any:
    """One of a list may stand alone; several may be words between commas."""
    return tuple(word.strip() for word in value.split(",")) if isinstance(value, str) else value


class FrozenOptions(BaseModel):
    """Options cannot be changed once made, and an unknown one is refused."""

    PLURAL: ClassVar[str] = "groups"  # what a list of them is called
    # Of the options that do not say otherwise.
    WHEN: ClassVar[When | None] = None
    CALLED: ClassVar[Called] = Called()

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    if not TYPE_CHECKING:  # or mypy would not know the options

        def __init__(self, **values: Any) -> None:
            """Options that are wrong are the caller's to fix, in Python as in a file."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                mistakes = sentences(error, type(self).model_fields)
                raise NpukitError("\n".join(f"{type(self).__name__}: {mistake}" for mistake in mistakes)) from None

        __init__.__pydantic_base_init__ = True  # groups inside others are validated without it


class Profile(FrozenOptions):
    """When to write a profiler trace."""

    steps: tuple[PositiveInt, PositiveInt] = Field(description="first and last optimizer step to record")

    @model_validator(mode="after")
    def _in_order(self) -> Profile:
        if self.steps[0] > self.steps[1]:
            raise ValueError("the first step comes after the last")
        return self


class Capture(FrozenOptions):
    """What of a run to record for `npukit precision compare`."""

    level: Literal["modules", "ops"] = Field("modules", description="modules alone, or every operator as well")
    steps: tuple[NonNegativeInt, NonNegativeInt] = Field((0, 2), description="first and last step to record, from 0 on")
    tensors: bool = Field(False, description="write every tensor too, not only statistics")


class FeatureDetection(FrozenOptions):
    """Feature-value detection: watch gradients for the jumps that faulty hardware makes."""

    enable: bool = Field(False, description="watch the gradients; NPU_ASD_ENABLE and NPU_ASD_CONFIG also turn it on")
    jump: Annotated[float, Field(gt=1)] = Field(
        40.0, description="how far above the mean of recent steps a gradient's maximum may be, as a factor"
    )
    action: Literal["warn", "stop"] = Field("warn", description="what to do about an anomaly")

    def with_environment(self, environ: Mapping[str, str] = os.environ) -> FeatureDetection:
        """These, or what torch_npu's variables say: NPU_ASD_CONFIG=enable:true,… before NPU_ASD_ENABLE=1|2|3.

        upper_thresh1 is a bound of squares; levels 2 and 3 stop the run, as they do there.
        """
        config = dict(item.split(":", 1) for item in environ.get("NPU_ASD_CONFIG", "").split(",") if ":" in item)
        level = environ.get("NPU_ASD_ENABLE", "0") if "NPU_ASD_CONFIG" not in environ else "0"
        if self.enable or (config.get("enable") != "true" and level not in ("1", "2", "3")):
            return self
        bound = config.get("upper_thresh1", "")
        return FeatureDetection(
            enable=True,
            jump=math.sqrt(int(bound)) if bound.isdigit() and int(bound) else self.jump,
            action="stop" if level in ("2", "3") else self.action,
        )


class TrainOptions(FrozenOptions):
    """How to train: length, batches, optimizer, schedule, precision, parallelism, checkpoints, watching, trouble."""

    output: Annotated[Path, Called(transformers="output_dir")] = Field(
        Path("output"), description="folder for checkpoints, logs and the trained model"
    )
    epochs: PositiveFloat = Field(1.0, description="passes over the data; may be a fraction")
    max_steps: PositiveInt | None = Field(None, description="number of optimizer steps, instead of epochs")
    max_epochs: Annotated[PositiveInt | None, Called(swift=True)] = Field(
        None, description="stop after this many passes over the data, even before max_steps; for streamed data"
    )
    seed: Annotated[int, Called(transformers=True)] = Field(42, description="seed for weights, data order and dropout")

    batch_size: PositiveInt = Field(1, description="rows per device in a forward pass")
    eval_batch_size: PositiveInt | None = Field(None, description="rows per device in evaluation; batch_size if empty")
    accumulation: Annotated[PositiveInt, Called(transformers="gradient_accumulation_steps")] = Field(
        1, description="forward passes per optimizer step"
    )
    workers: Annotated[NonNegativeInt | None, Called(transformers="dataloader_num_workers")] = Field(
        None, description="processes that load data; chosen for the device if empty"
    )
    shuffle: bool = Field(True, description="shuffle the data each epoch")

    optimizer: Annotated[
        Optimizer,
        Needs(
            {
                "galore": "galore_torch",
                "apollo": "apollo_torch",
                "adam_mini": "adam_mini",
                "adamw_8bit": "bitsandbytes",
            }
        ),
    ] = Field(
        "adamw",
        description="the first three are fused if the device supports it; from galore on they need a package of "
        "their own; those after sgd need parallel ddp",
    )
    optimizer_options: dict[str, Any] = Field(
        {}, description="more options of an optimizer after sgd, such as {rank: 128} for galore"
    )
    learning_rate: PositiveFloat = Field(1e-4, description="peak learning rate")
    weight_decay: Annotated[float, Field(ge=0), Called(transformers=True)] = Field(
        0.0, description="weight decay, which is not applied to biases and norms"
    )
    betas: tuple[Fraction, Fraction] = Field(
        (0.9, 0.999), description="Adam's decay rates of the first and the second moment"
    )
    epsilon: Annotated[PositiveFloat, Called(transformers="adam_epsilon")] = Field(
        1e-8, description="Adam's term for numerical stability"
    )
    momentum: Fraction = Field(0.0, description="momentum of SGD")
    max_grad_norm: Annotated[float, Field(ge=0), Called(transformers=True)] = Field(
        1.0, description="clip gradients to this norm; 0 turns clipping off"
    )
    schedule: Literal[
        "cosine", "cosine_restarts", "linear", "polynomial", "constant", "onecycle", "inverse_sqrt", "wsd"
    ] = Field("cosine", description="learning rate schedule; wsd is warm-up, stable, decay")
    warmup: Annotated[float, Field(ge=0)] = Field(0.0, description="warm-up steps; below 1, a share of all steps")
    decay: Annotated[Fraction, When("training.schedule", "wsd")] = Field(
        0.1, description="share of the steps in which the rate decays"
    )
    cycles: Annotated[PositiveInt, When("training.schedule", "cosine_restarts")] = Field(
        1, description="number of cycles in which the rate falls from its peak"
    )
    power: Annotated[PositiveFloat, When("training.schedule", "polynomial")] = Field(
        1.0, description="exponent of the remaining share of steps"
    )
    min_learning_rate: Annotated[float, Field(ge=0)] = Field(
        0.0, description="final rate of cosine, linear, polynomial and wsd"
    )

    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto", description="auto: bf16 if the device supports it, otherwise fp16; fp32 on a CPU"
    )
    loss_scale: PositiveFloat = Field(65536.0, description="initial loss scale for fp16")
    parallel: Annotated[
        Literal["ddp", "fsdp2", "zero1", "zero2", "zero3"] | Path,
        Needs(dict.fromkeys(("zero1", "zero2", "zero3"), "deepspeed"), path="deepspeed"),
    ] = Field("ddp", description="how several devices share the work; or the path of a DeepSpeed JSON file")
    sequence_parallel: Annotated[PositiveInt, Called(swift="sequence_parallel_size")] = Field(
        1, description="language models: devices that share the tokens of every row (Ulysses), for long rows"
    )
    find_unused_parameters: Annotated[bool, Called(transformers="ddp_find_unused_parameters")] = Field(
        False, description="for ddp, if some trained parameters take no part in some steps"
    )
    offload: bool = Field(False, description="for fsdp2 and zero: keep optimizer states in host memory")
    activation_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass instead of keeping them"
    )
    compile: Annotated[bool | None, Called(transformers="torch_compile")] = Field(
        None, description="use torch.compile; if empty, only for language models on CUDA"
    )

    log_every: PositiveInt | Share = Field(10, description="steps between log lines; below 1, a share of all steps")
    eval_every: PositiveInt | Share | Literal["epoch"] | None = Field(
        None, description="steps between evaluations; below 1, a share of all steps"
    )
    save_every: PositiveInt | Share | Literal["epoch"] | None = Field(
        "epoch", description="steps between checkpoints; below 1, a share of all steps"
    )
    save_total_limit: PositiveInt | None = Field(2, description="number of checkpoints to keep, besides the best one")
    async_save: Annotated[bool, Called(swift="use_flash_ckpt")] = Field(
        False, description="write checkpoints in the background"
    )
    resume: Literal["auto", "never"] | Path = Field(
        "auto", description="auto resumes from the newest checkpoint in output; or name a checkpoint"
    )
    best_metric: str = Field("eval_loss", description="metric that decides which checkpoint is best")
    best_is_highest: bool = Field(False, description="whether a higher best_metric is better")
    load_best: Annotated[bool, Called(transformers="load_best_model_at_end")] = Field(
        False, description="write the model of the best evaluation, not that of the last step"
    )
    early_stopping: Annotated[
        PositiveInt | None, Called(llama_factory="early_stopping_steps", swift="early_stop_interval")
    ] = Field(None, description="stop after this many evaluations without improvement")
    loggers: Annotated[
        tuple[Logger, ...],
        BeforeValidator(_as_list, json_schema_input_type=str | list[Logger]),
        Needs({name: name for name in ("tensorboard", "wandb", "swanlab", "mlflow")}),
    ] = Field((), description="services to log to, besides the JSON lines file")
    plot: bool = Field(True, description="draw the loss curve as a PNG")

    hang_limit: PositiveFloat | None = Field(
        None, description="seconds without a step before all stack traces are shown"
    )
    feature_detection: FeatureDetection = FeatureDetection()
    profile: Profile | None = Field(None, description="write a profiler trace of these steps")
    capture: Capture | None = Field(None, description="record these steps for npukit precision, into output/precision")

    def check_devices(self, count: int) -> None:
        """Refuse a number of devices that cannot be divided into groups that share rows."""
        if count % self.sequence_parallel:
            raise NpukitError(
                f"training.sequence_parallel: {count} device{'s' * (count > 1)} cannot be divided into groups of "
                f"{self.sequence_parallel}: train on a multiple of {self.sequence_parallel} devices."
            )

    def in_steps(self, total_steps: int) -> TrainOptions:
        """The same, with shares of all steps as numbers of steps.

        >>> TrainOptions(save_every=0.25).in_steps(30).save_every
        8
        """
        names = ("log_every", "eval_every", "save_every")
        shares = {name: getattr(self, name) for name in names if isinstance(getattr(self, name), float)}
        return self.model_copy(update={name: math.ceil(share * total_steps) for name, share in shares.items()})
