"""One configuration for using a model: which one, how to talk with it, and what to do with it.

`npukit chat`, `infer`, `serve` and `export` take it, each its part; `read_use` makes it from what the user wrote.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from npukit.llm.config.options import DataOptions, ModelOptions, Sources
from npukit.train.options import Fraction, Options

Verb = Literal["chat", "infer", "serve", "export"]
PENALTY, SHARE = Field(ge=-2, le=2), Field(gt=0, le=1)
# The groups that a verb makes use of.
USED: dict[Verb, frozenset[str]] = {
    "chat": frozenset({"model", "adapters", "chat", "sampling", "engine"}),
    "infer": frozenset({"model", "adapters", "chat", "sampling", "engine", "data"}),
    "serve": frozenset({"model", "adapters", "chat", "sampling", "engine", "serve"}),
    "export": frozenset({"model", "adapters", "export"}),
}


class Adapter(Options):
    """A LoRA adapter; one with a name is chosen by that name, those without are always applied, in their order."""

    PLURAL: ClassVar[str] = "adapters, as PATH or NAME=PATH"

    path: str = Field(description="folder or hub name")
    name: str | None = Field(None, description="what clients call it")


def _as_adapters(value: Any) -> Any:
    several = [value] if isinstance(value, str | dict | Adapter) else value
    if not isinstance(several, list | tuple):
        return value
    return tuple(_as_adapter(each) for each in several)


def _as_adapter(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    name, equals, path = value.partition("=")
    return {"path": path, "name": name} if equals else {"path": value}


ADAPTERS = str | Adapter | list[str | Adapter]  # as they may be written


class ChatOptions(Options):
    """How messages become text."""

    template: str | None = Field(
        None, description="chat template, by name or as a Jinja file; the tokenizer's if empty"
    )
    tokenizer: str | None = Field(None, description="folder of the tokenizer; the adapter's or the model's if empty")
    from_run: bool = Field(True, description="take template and system message from the run that trained the model")
    system: str | None = Field(None, description="system message for conversations without one")
    enable_thinking: bool | None = Field(None, description="reason first, if the template can switch that")


class SamplingOptions(Options):
    """How tokens are chosen; what is empty is as the model's generation_config.json says."""

    temperature: NonNegativeFloat | None = Field(None, description="0 always takes the likeliest token")
    top_p: Annotated[float, SHARE] | None = Field(None, description="only the likeliest tokens up to this share")
    top_k: int | None = Field(None, description="only so many of the likeliest tokens; 0 or -1 means all", ge=-1)
    min_p: Fraction | None = Field(None, description="only tokens at least this likely compared with the likeliest")
    repetition_penalty: PositiveFloat | None = Field(None, description="above 1 makes repetitions less likely")
    presence_penalty: Annotated[float, PENALTY] | None = Field(None, description="lowers tokens that have occurred")
    frequency_penalty: Annotated[float, PENALTY] | None = Field(None, description="the same, times how often")
    max_new_tokens: PositiveInt | None = Field(None, description="longest answer; up to the context's end if empty")
    stop: tuple[str, ...] = Field((), description="texts that end an answer")
    seed: int | None = Field(None, description="makes sampling repeatable")
    logprobs: bool = Field(False, description="give the log-probability of each token")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = Field(0, description="and those of so many of the likeliest")


class EngineOptions(Options):
    """What generates the tokens."""

    engine: Literal["npukit", "vllm"] = Field("npukit", description="npukit's own engine, or vLLM from its environment")
    max_model_len: PositiveInt | None = Field(None, description="longest prompt with its answer, in tokens")
    max_num_seqs: PositiveInt | None = Field(None, description="answers generated at the same time")
    memory: Annotated[float, SHARE] | None = Field(None, description="share of the device's memory to use")
    enforce_eager: bool = Field(False, description="do not capture decoding as graphs")
    tensor_parallel_size: PositiveInt = Field(1, description="vllm: devices that share each layer")
    pipeline_parallel_size: PositiveInt = Field(1, description="vllm: devices that share the layers")
    data_parallel_size: PositiveInt = Field(1, description="copies of the model")
    extra: dict[str, Any] = Field({}, description="vllm: more of its own options")


class InferOptions(Options):
    """Which rows are answered, and where the answers go."""

    input: Sources = Field((), description="files or data sets with questions; without any, infer is a conversation")
    folder: Path = Field(Path("data"), description="where dataset_info.json and files named without a path are")
    max_rows: PositiveInt | None = Field(None, description="of each data set")
    output: Path | None = Field(None, description="JSON lines file to write")
    force: bool = Field(False, description="start over, and replace the output")
    metrics: tuple[Literal["accuracy", "rouge", "bleu"], ...] = Field((), description="compare with the references")
    of_run: bool = Field(False, description="answer the validation rows of the run that trained the model")
    run: DataOptions | None = Field(None, description="the data of that run, found beside the model")
    run_seed: int = Field(42, description="the seed of that run, which chose its validation rows")


class ServeOptions(Options):
    """How a server is reached."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: NonNegativeInt = Field(8000, description="port to listen on; 0 picks a free one", le=65535)
    api_key: str | None = Field(None, description="key that clients must send")
    served_model_name: tuple[str, ...] = Field(
        (), description="what clients call the model; by default its folder's name"
    )
    ssl_keyfile: Path | None = Field(None, description="key for HTTPS")
    ssl_certfile: Path | None = Field(None, description="certificate for HTTPS")
    max_logprobs: NonNegativeInt = Field(20, description="most log-probabilities that a request may ask for")


class ExportOptions(Options):
    """What is written."""

    output: Path | None = Field(None, description="folder to write; MODEL-merged if empty")
    merge_lora: bool = Field(False, description="merge the adapters into the weights")
    shard_size: str = Field("5GB", description="largest weights file")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="of the written weights")
    force: bool = Field(False, description="replace what is there")


class Use(Options):
    """A model, and all that its use depends on."""

    model: ModelOptions
    adapters: Annotated[tuple[Adapter, ...], BeforeValidator(_as_adapters, json_schema_input_type=ADAPTERS)] = Field(
        (), description="LoRA adapters, as PATH or NAME=PATH"
    )
    chat: ChatOptions = ChatOptions()
    sampling: SamplingOptions = SamplingOptions()
    engine: EngineOptions = EngineOptions()
    data: InferOptions = InferOptions()
    serve: ServeOptions = ServeOptions()
    export: ExportOptions = ExportOptions()
