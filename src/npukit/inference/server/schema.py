"""The requests of clients. Unknown fields are ignored and named in the log, see `ignored`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from npukit.inference.server.ignored import check_unknown

T = TypeVar("T")


def _few(value: Any) -> Any:
    """A list limit that is checked before the entries are."""
    if isinstance(value, dict) and len(value) > 1024:
        raise ValueError("at most 1,024 entries are allowed")
    return value


# Every number of a request has limits on both sides, and every list of numbers or texts ends at its first mistake.
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
CountOrAll = Annotated[int, Field(ge=-1, le=2**31 - 1)]
Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
TokenId = Count
Stop = Annotated[str, Field(max_length=1000)]
ListOf = Annotated[list[T], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True, max_length=2**22)]
Messages = Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=2**16)]
Bias = Annotated[float, Field(ge=-100, le=100)]


class Lenient(BaseModel):
    """A model of this API: numbers are finite, unknown fields are ignored unless they change the answer."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _unknown(cls, given: Any) -> Any:
        if isinstance(given, dict):
            check_unknown(cls.__name__, _names(cls), given)
        return given


@cache
def _names(kind: type[BaseModel]) -> frozenset[str]:
    """The names of the fields, as clients write them."""
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


class StreamOptions(Lenient):
    """What a stream contains besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(Lenient):
    """vLLM's way to ask for an answer of a given form; exactly one field."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=2**16)] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if sum(value is not None for value in self.__dict__.values()) != 1:
            raise ValueError("give exactly one of json, regex, choice, grammar and json_object")
        return self


class JsonSchema(Lenient):
    """The schema of an answer."""

    name: str = ""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Lenient):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _schema(self) -> ResponseFormat:
        if self.type == "json_schema" and (self.json_schema is None or self.json_schema.schema_ is None):
            raise ValueError("json_schema needs a schema")
        return self


class SamplingFields(Lenient):
    """Sampling: OpenAI's fields and those of vLLM's that clients send."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = 1
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], BeforeValidator(_few)] | None = None
    seed: Int64 | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None

    top_k: CountOrAll | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    min_tokens: Count | None = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True, max_length=1024)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = True
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: CountOrAll | None = None  # -1: of the whole vocabulary
    truncate_prompt_tokens: CountOrAll | None = None
    truncation_side: Literal["left", "right"] | None = "left"
    return_token_ids: bool | None = None
    use_beam_search: bool | None = None

    @model_validator(mode="after")
    def _stream_options_need_a_stream(self) -> SamplingFields:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is for streams only")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs is not for streams")
        if self.use_beam_search:
            raise ValueError("beam search is not supported")
        return self

    @property
    def stops(self) -> list[str]:
        """The stop strings, as a list."""
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [stop for stop in stops if stop]


class CompletionRequest(SamplingFields):
    """/v1/completions"""

    prompt: str | TokenIds | ListOf[str] | ListOf[TokenIds]
    echo: bool | None = False
    logprobs: CountOrAll | None = None
    suffix: str | None = None
    best_of: Count | None = None
    add_special_tokens: bool | None = True

    @model_validator(mode="after")
    def _known(self) -> CompletionRequest:
        if self.suffix:
            raise ValueError("suffix is not supported")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError("best_of is not supported")
        return self


class FunctionTool(Lenient):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Lenient):
    """A tool: a function, so far."""

    type: Literal["function"]
    function: FunctionTool


Tools = Annotated[list[Tool], Field(fail_fast=True, max_length=1024)]


class NamedFunction(Lenient):
    """The name of a function."""

    name: str


class NamedTool(Lenient):
    """A tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatRequest(SamplingFields):
    """/v1/chat/completions"""

    messages: Annotated[Messages, Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: CountOrAll | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Annotated[str, Field(max_length=32)] | None = None
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    echo: bool | None = False
    include_reasoning: bool | None = True

    @model_validator(mode="after")
    def _tools(self) -> ChatRequest:
        if self.longest == 0:
            raise ValueError("max_tokens must be at least 1")
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        wanted = self.tool_choice
        if wanted not in (None, "none", "auto") and not self.tools:
            raise ValueError("tool_choice needs tools")
        names = [tool.function.name for tool in self.tools or ()]
        if isinstance(wanted, NamedTool) and wanted.function.name not in names:
            raise ValueError(f"tool_choice names {wanted.function.name!r}, which is not among the tools")
        return self

    @property
    def longest(self) -> int | None:
        """How many tokens the answer may have."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeRequest(Lenient):
    """/tokenize: a prompt or messages"""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = True
    add_generation_prompt: bool | None = True
    return_token_strs: bool | None = False
    tools: Tools | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Lenient):
    """/detokenize"""

    model: str | None = None
    tokens: TokenIds


class AdapterRequest(Lenient):
    """/v1/load_lora_adapter"""

    lora_name: Annotated[str, Field(min_length=1, max_length=256)]
    lora_path: str
    load_inplace: bool | None = False


class AdapterName(Lenient):
    """/v1/unload_lora_adapter"""

    lora_name: str
