"""One configuration for training language models: model, tuning, data, training.

Every option has a type, a default and a meaning; `npukit train --explain` prints this file as a table.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from npukit.train.options import Fraction, Options, TrainOptions, When

LORA, FREEZE = When("tuning.method", "lora"), When("tuning.method", "freeze")
CHAT = When("task", "sft")
Format = Literal["auto", "alpaca", "sharegpt", "messages", "prompt", "text"]


class ModelOptions(Options):
    """Which model."""

    path: str = Field(description="a folder, or a name on the Hugging Face hub, or on ModelScope with hub: modelscope")
    revision: str | None = Field(None, description="branch, tag or commit of a hub's model")
    hub: Literal["huggingface", "modelscope"] = Field(
        "huggingface", description="where names are looked up; USE_MODELSCOPE_HUB=1 makes it modelscope"
    )
    adapter: Path | None = Field(None, description="a LoRA adapter to go on with")
    from_config: bool = Field(False, description="take only the shape, with new weights: to pre-train")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="of the loaded weights")
    trust_remote_code: bool = Field(False, description="run Python code that comes with the model")


def _as_names(value: Any) -> Any:
    """`q_proj` and `q_proj,v_proj` are names; other text is a regular expression, or all-linear."""
    is_names = isinstance(value, str) and value != "all-linear" and re.fullmatch(r"\w[\w.]*(\s*,\s*\w[\w.]*)*", value)
    return tuple(name.strip() for name in value.split(",")) if is_names else value


class TuningOptions(Options):
    """What of the model is trained."""

    method: Literal["lora", "full", "freeze"] = Field("lora", description="an adapter, everything, or the last layers")
    rank: Annotated[PositiveInt, LORA] = Field(8, description="of the two small matrices")
    alpha: Annotated[PositiveFloat | None, LORA] = Field(None, description="scale; twice the rank where not given")
    dropout: Annotated[Fraction, LORA] = Field(0.0, description="of the adapter's input")
    targets: Annotated[str | tuple[str, ...], BeforeValidator(_as_names), LORA] = Field(
        "all-linear", description="names of modules, or a regular expression for their whole names"
    )
    rslora: Annotated[bool, LORA] = Field(False, description="scale by the root of the rank")
    dora: Annotated[bool, LORA] = Field(False, description="train magnitude and direction apart")
    bias: Annotated[Literal["none", "all", "lora_only"], LORA] = Field("none", description="which biases are trained")
    init: Annotated[str | bool, LORA] = Field(True, description="PEFT's init_lora_weights")
    modules_to_save: Annotated[tuple[str, ...], LORA] = Field((), description="modules that are trained whole")
    layers: Annotated[PositiveInt, FREEZE] = Field(2, description="how many of the last layers are trained")


class Source(Options):
    """One data set."""

    PLURAL: ClassVar[str] = "data sets"

    path: str = Field(description="a file, a folder, a hub's name, or a name in dataset_info.json; path#N takes N rows")
    format: Format = Field("auto", description="how rows are laid out; auto looks at the first ones")
    weight: PositiveFloat | None = Field(None, description="its share when several are mixed; by size if empty")
    split: str = Field("train", description="of a hub's data set")
    subset: str | None = Field(None, description="of a hub's data set")
    columns: dict[str, str] = Field({}, description="other names of the columns, as {instruction: question}")


def _as_sources(value: Any) -> Any:
    """A path alone is a data set, and a data set alone is a list of one."""
    several = [value] if isinstance(value, str | dict | Source) else value
    if not isinstance(several, list | tuple):
        return value
    return tuple({"path": each} if isinstance(each, str) else each for each in several)


Sources = Annotated[tuple[Source, ...], BeforeValidator(_as_sources)]


class DataOptions(Options):
    """What it is trained on."""

    train: Sources = Field(description="data sets to train on; a path alone is enough", min_length=1)
    validation: Sources | Annotated[float, Field(ge=0)] = Field(
        0.0, description="data sets to evaluate on, or a share of the training rows, or from 1 a number of rows"
    )
    folder: Path = Field(Path("data"), description="where dataset_info.json and files named without a path are")
    template: Annotated[str | None, CHAT] = Field(
        None, description="chat template, by name or as a Jinja file; the tokenizer's own if empty"
    )
    system: Annotated[str | None, CHAT] = Field(None, description="system message for rows without one")
    cutoff: PositiveInt = Field(2048, description="rows are cut after this many tokens")
    max_rows: PositiveInt | None = Field(None, description="of each data set")
    train_on_prompt: Annotated[bool, CHAT] = Field(
        False, description="loss on the question too; otherwise on answers alone"
    )
    last_answer_only: Annotated[bool, CHAT] = Field(
        False, description="loss on the last answer of a conversation alone"
    )
    packing: bool = Field(True, description="fill each batch row with several data rows that do not see each other")
    pack_length: Annotated[PositiveInt | None, When("data.packing", True)] = Field(
        None, description="tokens of a packed row; cutoff where not given"
    )
    streaming: bool = Field(False, description="read rows as they are needed; training.max_steps must be set")
    bad_rows: Literal["skip", "stop"] = Field("skip", description="what to do about rows that cannot be used")
    preprocessing_workers: NonNegativeInt | None = Field(None, description="cores that tokenise; all if empty")
    cache: bool = Field(True, description="keep tokenised rows for the next run")


class Config(Options):
    """A whole run."""

    task: Literal["sft", "pt"] = Field("sft", description="supervised fine-tuning, or pre-training on text")
    model: ModelOptions
    tuning: TuningOptions = TuningOptions()
    data: DataOptions
    training: TrainOptions = TrainOptions()
