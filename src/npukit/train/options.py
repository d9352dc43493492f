"""Everything that can be chosen about a training run, whatever the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

Fraction = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class When:
    """An option has an effect only while another one has this value."""

    key: str
    value: str | bool


class Options(BaseModel):
    """Options cannot be changed once made, and an unknown one is refused."""

    PLURAL: ClassVar[str] = "groups"  # what a list of them is called

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Profile(Options):
    """When to write a profiler trace."""

    steps: tuple[PositiveInt, PositiveInt] = Field(description="first and last optimizer step to record")

    @model_validator(mode="after")
    def _in_order(self) -> Profile:
        if self.steps[0] > self.steps[1]:
            raise ValueError("the first step comes after the last")
        return self


class FeatureDetection(Options):
    """Feature-value detection: watch gradients for the jumps that faulty hardware makes."""

    enable: bool = Field(False, description="watch the gradients; NPU_ASD_ENABLE or NPU_ASD_CONFIG turn it on too")
    jump: Annotated[float, Field(gt=1)] = Field(
        40.0, description="how many times the mean of its last steps a gradient's maximum may reach"
    )
    action: Literal["warn", "stop"] = Field("warn", description="what to do about an anomaly")


class TrainOptions(Options):
    """How to train: length, batches, optimizer, schedule, precision, parallelism, checkpoints, watching, trouble."""

    output: Path = Field(Path("output"), description="folder for checkpoints, logs and the result")
    epochs: PositiveFloat = Field(1.0, description="how often to go through the data; a part is allowed")
    max_steps: PositiveInt | None = Field(None, description="train for this many optimizer steps, whatever the epochs")
    seed: int = Field(42, description="of weights, data order, dropout")

    batch_size: PositiveInt = Field(1, description="rows per device and forward pass")
    eval_batch_size: PositiveInt | None = Field(None, description="the same in evaluation; batch_size where not given")
    accumulation: PositiveInt = Field(1, description="forward passes per optimizer step")
    workers: NonNegativeInt | None = Field(None, description="processes that load data; chosen for the device if empty")
    shuffle: bool = Field(True, description="go through the data in a new order each epoch")

    optimizer: Literal["adamw", "adam", "sgd"] = Field("adamw", description="fused where the device has it")
    learning_rate: PositiveFloat = Field(1e-4, description="the highest learning rate")
    weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="not applied to biases and norms")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="of Adam")
    epsilon: PositiveFloat = Field(1e-8, description="of Adam")
    momentum: Fraction = Field(0.0, description="of SGD")
    max_grad_norm: Annotated[float, Field(ge=0)] = Field(1.0, description="clip gradients to this norm; 0 does not")
    schedule: Literal["cosine", "linear", "constant", "onecycle", "inverse_sqrt", "wsd"] = Field(
        "cosine", description="how the learning rate goes down; wsd is warm-up, stable, decay"
    )
    warmup: Annotated[float, Field(ge=0)] = Field(0.0, description="steps of warm-up; below 1 a share of all steps")
    decay: Annotated[Fraction, When("training.schedule", "wsd")] = Field(
        0.1, description="the share of steps in which the rate goes down"
    )
    min_learning_rate: Annotated[float, Field(ge=0)] = Field(0.0, description="where cosine, linear and wsd end")

    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto", description="auto is bf16 where the device has it, else fp16 on accelerators and fp32 on a CPU"
    )
    loss_scale: PositiveFloat = Field(65536.0, description="fp16: the first scale of the gradients")
    parallel: Literal["ddp", "fsdp2", "zero1", "zero2", "zero3"] | Path = Field(
        "ddp", description="how several devices share the work; a path is a DeepSpeed JSON file"
    )
    find_unused_parameters: bool = Field(False, description="ddp: some trained parameters take no part in some steps")
    offload: bool = Field(False, description="fsdp2 and zero: keep optimizer states in host memory")
    activation_checkpointing: bool = Field(False, description="compute activations twice instead of keeping them")
    compile: bool | None = Field(None, description="torch.compile; if empty, language models on CUDA are compiled")

    log_every: PositiveInt = Field(10, description="steps between two lines of the log")
    eval_every: PositiveInt | Literal["epoch"] | None = Field(None, description="steps between two evaluations")
    save_every: PositiveInt | Literal["epoch"] | None = Field("epoch", description="steps between two checkpoints")
    save_total_limit: PositiveInt | None = Field(2, description="how many checkpoints to keep, the best one besides")
    async_save: bool = Field(False, description="write checkpoints while training goes on")
    resume: Literal["auto", "never"] | Path = Field(
        "auto", description="auto goes on from the newest checkpoint in output; or name a checkpoint"
    )
    best_metric: str = Field("eval_loss", description="the figure that decides which checkpoint is the best")
    best_is_highest: bool = Field(False, description="whether more of best_metric is better")
    early_stopping: PositiveInt | None = Field(None, description="stop after so many evaluations without a better one")
    loggers: tuple[Literal["tensorboard", "wandb", "swanlab"], ...] = Field((), description="besides the JSONL log")
    plot: bool = Field(True, description="draw the loss curve as a PNG")

    hang_limit: PositiveFloat | None = Field(None, description="seconds without a step until all stacks are shown")
    feature_detection: FeatureDetection = FeatureDetection()
    profile: Profile | None = Field(None, description="write a profiler trace of these steps")
