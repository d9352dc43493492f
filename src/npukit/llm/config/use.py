"""The configuration for using a model: which one, how to talk with it, and what to do with it.

`npukit chat`, `infer`, `serve`, `eval` and `export` use parts of it. Options are declared only here: flags, YAML keys,
other tools' names, `--explain`, the JSON schema and the arguments of child processes are derived from it.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    field_validator,
)

from npukit.errors import NpukitError
from npukit.llm.config import speculative
from npukit.llm.config.options import DataOptions, ModelOptions, Sources
from npukit.train.options import Called, Fraction, FrozenOptions

Verb = Literal["chat", "infer", "serve", "export", "eval"]
PENALTY, SHARE = Field(ge=-2, le=2), Field(gt=0, le=1)
# the groups of options that each verb uses
USED: dict[Verb, frozenset[str]] = {
    "chat": frozenset({"model", "adapters", "chat", "sampling", "engine"}),
    "infer": frozenset({"model", "adapters", "chat", "sampling", "engine", "data"}),
    "serve": frozenset({"model", "adapters", "chat", "sampling", "engine", "serve"}),
    "eval": frozenset({"model", "adapters", "chat", "engine", "data"}),
    "export": frozenset({"model", "adapters", "export"}),
}
DEFAULT_TOKENS = 1024  # the maximum number of tokens of an answer
# Options of the engine with the same names and values in vLLM.
IN_VLLM = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "quantization",
    "kv_cache_dtype",
    "speculative_config",
)
MODEL_FLAGS = {"model.dtype", "model.trust_remote_code"}  # all other options of a model are for training


@dataclass(frozen=True)
class Flag:
    """How an option appears as a flag, if it is not just --its-name in all verbs that use its group."""

    names: tuple[str, ...] = ()
    verbs: tuple[Verb, ...] | None = None  # the only verbs with this flag; () means that there is none
    variable: str | None = None  # the environment variable that replaces it


NO_FLAG, SERVING, ANSWERING = Flag(verbs=()), Flag(verbs=("serve",)), Flag(verbs=("chat", "infer"))
INFERRING, TALKING = Flag(verbs=("infer",)), Flag(verbs=("chat", "infer", "serve"))


class ChosenAdapter(FrozenOptions):
    """A LoRA adapter. One with a name is selected by that name; the others are always applied, in order."""

    PLURAL: ClassVar[str] = "adapters, as PATH or NAME=PATH"

    path: str = Field(description="folder or hub name")
    name: str | None = Field(None, description="what clients call it")


def _as_adapters(value: Any) -> Any:
    several = [value] if isinstance(value, str | dict | ChosenAdapter) else value
    if not isinstance(several, list | tuple):
        return value
    return tuple(_as_adapter(adapter) for adapter in several)


def _as_adapter(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    name, equals, path = value.partition("=")
    return {"path": path, "name": name} if equals else {"path": value}


ADAPTERS = str | ChosenAdapter | list[str | ChosenAdapter]  # the ways of writing them


def _as_names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


NAMES = str | list[str]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_names, json_schema_input_type=NAMES)]


class ChatOptions(FrozenOptions):
    """How messages become text."""

    template: Annotated[str | None, Called(swift=True), Flag(("--chat-template", "--template"))] = Field(
        None, description="chat template, by name or as a Jinja file; the tokenizer's if empty"
    )
    tokenizer: Annotated[str | None, NO_FLAG] = Field(
        None, description="folder of the tokenizer; the adapter's or the model's if empty"
    )
    from_run: Annotated[bool, Called(swift="load_args"), NO_FLAG] = Field(
        True, description="take template and system message from the run that trained the model"
    )
    system: Annotated[str | None, Called(llama_factory="default_system")] = Field(
        None, description="system message for conversations without one"
    )
    enable_thinking: Annotated[bool | None, Called(llama_factory=True, swift=True), TALKING] = Field(
        None, description="let the model reason first, if its chat template has a switch for it"
    )
    image_min_pixels: Annotated[PositiveInt | None, Called(llama_factory=True), NO_FLAG] = Field(
        None, description="images with fewer pixels are enlarged; as the model's image processor says if empty"
    )
    image_max_pixels: Annotated[PositiveInt | None, Called(llama_factory=True)] = Field(
        None, description="scale larger images down to this many pixels, which means fewer tokens"
    )
    video_fps: Annotated[PositiveFloat | None, Called(llama_factory=True)] = Field(
        None, description="frames of a video to take per second; as the model's video processor says if empty, or 2"
    )
    video_max_frames: Annotated[PositiveInt | None, Called(llama_factory="video_maxlen")] = Field(
        None, description="maximum number of frames of a video; they are spread over its whole length"
    )
    video_min_pixels: Annotated[PositiveInt | None, Called(llama_factory=True), NO_FLAG] = Field(
        None, description="frames of videos with fewer pixels are enlarged"
    )
    video_max_pixels: Annotated[PositiveInt | None, Called(llama_factory=True)] = Field(
        None, description="frames of videos with more pixels are scaled down, which means fewer tokens"
    )


class SamplingOptions(FrozenOptions):
    """How tokens are chosen. Empty options are taken from the model's generation_config.json."""

    temperature: Annotated[NonNegativeFloat | None, Called(swift=True)] = Field(
        None, description="randomness; 0 always chooses the likeliest token"
    )
    top_p: Annotated[Annotated[float, SHARE] | None, Called(swift=True)] = Field(
        None, description="consider only the likeliest tokens up to this total probability"
    )
    top_k: Annotated[int | None, Field(ge=-1), Called(swift=True)] = Field(
        None, description="consider only this many of the likeliest tokens; 0 or -1 means all"
    )
    min_p: Fraction | None = Field(None, description="consider only tokens this likely relative to the likeliest")
    repetition_penalty: Annotated[PositiveFloat | None, Called(llama_factory=True, swift=True)] = Field(
        None, description="above 1 makes repetitions less likely"
    )
    presence_penalty: Annotated[float, PENALTY] | None = Field(
        None, description="above 0 makes tokens that have occurred less likely"
    )
    frequency_penalty: Annotated[float, PENALTY] | None = Field(
        None, description="above 0 makes tokens less likely the more often they have occurred"
    )
    max_new_tokens: Annotated[
        PositiveInt | None,
        Called(swift=True),
        Flag(("--max-new-tokens", "--max-tokens"), verbs=("chat", "infer")),
    ] = Field(None, description="longest answer, in tokens; 1,024 if empty")
    stop: Annotated[Names, ANSWERING] = Field((), description="text that ends an answer")
    seed: Annotated[int | None, Called(llama_factory=True, swift=True), ANSWERING] = Field(
        None, description="makes sampling repeatable"
    )
    logprobs: Annotated[bool, Called(swift=True), NO_FLAG] = Field(
        False, description="give the log-probability of each token"
    )
    top_logprobs: Annotated[int, Field(ge=0, le=20), NO_FLAG] = Field(
        0, description="also give those of this many of the likeliest tokens"
    )

    def of_an_answer(self) -> dict[str, Any]:
        """Return `given()` with a limit and a seed, for answers in the terminal and of rows."""
        return {**self.given(), "max_tokens": self.max_new_tokens or DEFAULT_TOKENS, "seed": self.seed or 0}

    def given(self) -> dict[str, Any]:
        """Return the options that were set, by their names in a request. The model's own apply to all others."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty")
        chosen = {name: getattr(self, name) for name in (*names, "frequency_penalty")}
        if self.temperature is None and (self.top_p is not None or self.top_k is not None):
            chosen["temperature"] = 1.0  # setting one of these means to sample
        if self.top_k is not None:
            chosen["top_k"] = max(0, self.top_k)
        return {name: value for name, value in chosen.items() if value is not None}


class EngineOptions(FrozenOptions):
    """The engine that generates tokens, and its size. Empty options are chosen for the device."""

    engine: Annotated[Literal["npukit", "vllm"], SERVING] = Field(
        "npukit", description="what generates the tokens: npukit's own engine, or vLLM from its environment"
    )
    max_model_len: Annotated[
        int | None, Field(ge=2), Called(llama_factory="vllm_maxlen", swift=("max_model_len", "vllm_max_model_len"))
    ] = Field(
        None, description="maximum number of tokens in prompt and answer together; the model's own limit if empty"
    )
    max_num_seqs: Annotated[PositiveInt, Flag(verbs=("infer", "serve", "eval"))] = Field(
        256, description="answers generated at the same time"
    )
    gpu_memory_utilization: Annotated[
        float,
        SHARE,
        Called(llama_factory="vllm_gpu_util", swift="vllm_gpu_memory_utilization"),
    ] = Field(0.9, description="share of the device's memory to use in total")
    quantization: str | None = Field(
        None,
        description="`w8a8` quantises linear layers to 8 bits while loading: int8 on NPU and CPU, fp8 on CUDA; "
        "with vLLM, one of its methods",
    )
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "int8"] = Field(
        "auto",
        description="type of the cached keys and values: 8 bits take half the memory, and some answers differ; auto is "
        "that of the model",
    )
    enforce_eager: Annotated[bool, Called(llama_factory="vllm_enforce_eager", swift="vllm_enforce_eager")] = Field(
        False, description="do not capture decoding as graphs on NPU and CUDA"
    )
    prompt_lookup: Annotated[int, Field(ge=0, le=64)] = Field(
        0,
        description="guess up to this many tokens at once from the prompt and the answer so far; answers stay the same",
    )
    speculative_model: str | None = Field(
        None,
        description="a smaller model with the same tokenizer, which guesses tokens for the larger one; answers stay "
        "the same",
    )
    speculative_method: Literal["mtp"] | None = Field(
        None,
        description="`mtp` guesses tokens with the layer for multi-token prediction that some checkpoints bring; "
        "answers stay the same",
    )
    num_speculative_tokens: Annotated[int, Field(ge=1, le=speculative.HIGHEST)] = Field(
        4, description="with a smaller model or `mtp`: tokens to guess at once"
    )
    speculative_config: Annotated[str | dict[str, Any] | None, Called(swift="vllm_speculative_config")] = Field(
        None,
        description="how to guess tokens, as vLLM takes it: JSON with method (mtp, ngram), model and "
        "num_speculative_tokens",
    )
    allow_pickles: bool = Field(False, description="load weights that are not in safetensors")
    num_blocks: Annotated[PositiveInt | None, NO_FLAG] = Field(
        None, description="number of blocks of the paged cache; as many as fit into memory if empty"
    )
    block_size: Annotated[PositiveInt | None, NO_FLAG] = Field(None, description="tokens in a block of the paged cache")
    max_num_batched_tokens: Annotated[PositiveInt | None, SERVING] = Field(
        None,
        description="prompt tokens computed in one pass at most: longer prompts are computed in chunks, between which "
        "other answers go on",
    )
    max_num_mixed_tokens: Annotated[NonNegativeInt | None, NO_FLAG] = Field(
        None, description="maximum number of tokens in a pass that both decodes and reads prompts; 0 never does both"
    )
    enable_prefix_caching: Annotated[bool, NO_FLAG] = Field(True, description="reuse cached blocks of earlier prompts")
    compile: Annotated[bool | None, NO_FLAG] = Field(None, description="compile the layers; if empty, only on CUDA")
    async_scheduling: Annotated[bool | None, NO_FLAG] = Field(
        None, description="launch a step before the tokens of the last one are known; if empty, on NPU and CUDA"
    )
    paged: Annotated[bool | None, NO_FLAG] = Field(
        None, description="use a paged cache; if empty, for models whose attention it supports"
    )
    python: Annotated[Path | None, SERVING] = Field(None, description="with vLLM: the Python of its environment")
    tensor_parallel_size: Annotated[PositiveInt, Called(swift="vllm_tensor_parallel_size"), SERVING] = Field(
        1, description="with vLLM: devices that share each layer"
    )
    pipeline_parallel_size: Annotated[PositiveInt, Called(swift="vllm_pipeline_parallel_size"), SERVING] = Field(
        1, description="with vLLM: devices that share the layers"
    )
    data_parallel_size: Annotated[PositiveInt, Called(swift="vllm_data_parallel_size"), SERVING] = Field(
        1, description="with vLLM: copies of the model"
    )
    extra: Annotated[dict[str, Any], Called(llama_factory="vllm_config", swift="vllm_engine_kwargs"), NO_FLAG] = Field(
        {}, description="with vLLM: more of its own options"
    )

    @field_validator("speculative_config")
    @classmethod
    def _known_to_npukit(cls, value: Any, others: ValidationInfo) -> Any:
        config = speculative.read_json(value)
        if config is not None and others.data.get("engine") == "npukit":
            speculative.options_of(config)
        return config

    def with_speculative_config(self) -> EngineOptions:
        """Return a copy with the options in `speculative_config`. Only one way of guessing tokens is allowed.

        >>> EngineOptions(speculative_config={"method": "mtp"}).with_speculative_config().speculative_method
        'mtp'
        """
        given = speculative.options_of(self.speculative_config) if isinstance(self.speculative_config, dict) else {}
        ways = ("prompt_lookup", "speculative_model", "speculative_method")
        if sum(bool(getattr(self, name)) + (name in given) for name in ways) > 1:
            raise NpukitError(
                "--prompt-lookup, --speculative-model and --speculative-method all guess tokens: choose one."
            )
        return self.model_copy(update={**given, "speculative_config": None})


class InferOptions(FrozenOptions):
    """Which rows are answered, and where the answers are written."""

    input: Annotated[Sources, NO_FLAG] = Field(
        (), description="files or data sets with questions; without any, infer is a conversation"
    )
    folder: Annotated[Path, Called(llama_factory="dataset_dir"), Flag(("--data-folder",), verbs=("infer",))] = Field(
        Path("data"), description="folder of dataset_info.json, for data sets named in it"
    )
    media_dir: Annotated[Path | None, Called(llama_factory=True)] = Field(
        None,
        description="folder of the images and videos that rows name; if empty, the folder of the rows or the "
        "working directory",
    )
    max_rows: Annotated[
        PositiveInt | None, Called(llama_factory="max_samples", swift="val_dataset_sample"), INFERRING
    ] = Field(None, description="use at most this many rows of each data set")
    output: Annotated[Path | None, Called(swift="result_path"), Flag(("--output", "-o"), verbs=("infer",))] = Field(
        None, description="file for the answers; answers.jsonl if empty"
    )
    force: Annotated[bool, Called(llama_factory="overwrite_output_dir"), INFERRING] = Field(
        False, description="overwrite existing output"
    )
    metrics: Annotated[tuple[Literal["accuracy", "rouge", "bleu"], ...], NO_FLAG] = Field(
        (), description="compare with the references"
    )
    of_run: Annotated[bool, Called(swift="load_data_args"), NO_FLAG] = Field(
        False, description="answer the validation rows of the run that trained the model"
    )
    run: Annotated[DataOptions | None, NO_FLAG] = Field(
        None, description="the data of that run, found beside the model"
    )
    run_seed: Annotated[int, NO_FLAG] = Field(42, description="the seed of that run, which chose its validation rows")


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach a server on this address.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ServeOptions(FrozenOptions):
    """Where a server listens, who may use it, and its limits."""

    host: Annotated[str, Called(swift=("host", "server_name"))] = Field("127.0.0.1", description="address to listen on")
    port: Annotated[NonNegativeInt, Field(le=65535), Called(swift=("port", "server_port"))] = Field(
        8000, description="port to listen on; 0 picks a free one"
    )
    served_model_name: Names = Field((), description="model name for clients; by default the folder's name")
    api_key: Annotated[Names, Called(swift=True), Flag(variable="NPUKIT_API_KEY")] = Field(
        (), description="key that clients must send", repr=False
    )
    no_key: bool = Field(False, description="serve without an API key on an address that others can reach")
    cors: Names = Field((), description="origin whose web pages may use the API")
    ssl_keyfile: Annotated[Path | None, Called(swift=True)] = Field(None, description="key for HTTPS")
    ssl_certfile: Annotated[Path | None, Called(swift=True)] = Field(None, description="certificate for HTTPS")
    allow_adapter_changes: bool = Field(False, description="let clients load and remove adapters while the server runs")
    max_body: PositiveFloat = Field(16, description="largest request, in MiB")
    max_images: NonNegativeInt = Field(
        16, description="maximum number of images and videos per request, for vision models"
    )
    max_video_seconds: PositiveFloat = Field(600.0, description="maximum length of a video in a request, in seconds")
    allowed_media_domains: Names = Field(
        (), description="domain from which the server may fetch images and videos; data URIs always work"
    )
    max_waiting: PositiveInt = Field(
        512, description="maximum number of running and waiting answers; further requests get status 429"
    )
    max_logprobs: Annotated[NonNegativeInt, Called(swift=True)] = Field(
        20, description="maximum number of log-probabilities that a request may ask for"
    )
    timeout: PositiveFloat = Field(600, description="time limit for an answer in seconds; a longer answer is cut off")
    drain: NonNegativeFloat = Field(30, description="seconds that running answers may take after SIGTERM")

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach the server."""
        return is_loopback(self.host)

    def check(self) -> None:
        """Refuse unsafe and contradictory options."""
        if not self.is_local and not self.api_key and not self.no_key:
            raise NpukitError(
                f"Anyone who can reach {self.host} could use this server: set a key with --api-key, "
                "or pass --no-key if that is what you want."
            )
        if any(not key or not key.isascii() for key in self.api_key):
            raise NpukitError("An API key must be printable ASCII text.")
        if (self.ssl_keyfile is None) != (self.ssl_certfile is None):
            raise NpukitError("TLS needs both --ssl-keyfile and --ssl-certfile.")


class ExportOptions(FrozenOptions):
    """What is written."""

    output: Annotated[Path | None, Called(llama_factory="export_dir", swift="output_dir"), Flag(("--output", "-o"))] = (
        Field(None, description="folder to write; MODEL-merged, or MODEL- and the format, if empty")
    )
    merge_lora: bool = Field(False, description="merge the adapters; they are always merged if there are any")
    shard_size: Annotated[str, Called(swift="max_shard_size")] = Field(
        "5GB", description="largest size of a weights file"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="data type of the written weights; auto keeps the model's"
    )
    force: Annotated[bool, Called(swift="exist_ok")] = Field(False, description="overwrite existing output")


class Use(FrozenOptions):
    """A model, and everything that its use depends on.

    >>> Use(model={"path": "runs/lora"}, engine={"max_num_seqs": 64})
    """

    model: ModelOptions
    adapters: Annotated[
        tuple[ChosenAdapter, ...],
        BeforeValidator(_as_adapters, json_schema_input_type=ADAPTERS),
        Flag(("--adapter",)),
    ] = Field((), description="LoRA adapter, as PATH; as NAME=PATH, clients of a server can choose it by name")
    chat: ChatOptions = ChatOptions()
    sampling: SamplingOptions = SamplingOptions()
    engine: EngineOptions = EngineOptions()
    data: InferOptions = InferOptions()
    serve: ServeOptions = ServeOptions()
    export: ExportOptions = ExportOptions()

    @property
    def merged(self) -> tuple[str, ...]:
        """The paths of adapters without a name, which are part of the model."""
        return tuple(adapter.path for adapter in self.adapters if adapter.name is None)

    @property
    def named(self) -> dict[str, str]:
        """The paths of adapters by the name that selects them."""
        return {adapter.name: adapter.path for adapter in self.adapters if adapter.name is not None}

    def ready_to_serve(self) -> Use:
        """Check the options of the server and the names of models, and return a copy with a name for the model."""
        self.serve.check()
        given = self.serve.served_model_name or (Path(self.model.path).name or self.model.path,)
        # JSON cannot hold the bytes of a folder's name that are not UTF-8.
        names = tuple(name.encode(errors="surrogateescape").decode(errors="replace") for name in given)
        known = list(names)
        for adapter in self.adapters:
            if adapter.name is None:
                continue
            if not adapter.name or not adapter.path:
                raise NpukitError(f"--adapter {adapter.name}={adapter.path}: write NAME=PATH.")
            if adapter.name in known:
                text = f"there is already a model named {adapter.name!r}: choose another name."
                raise NpukitError(f"--adapter {adapter.name}={adapter.path}: {text}")
            known.append(adapter.name)
        return self.model_copy(update={"serve": self.serve.model_copy(update={"served_model_name": names})})
