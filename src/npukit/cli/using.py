"""The options of verbs that use a model: which one, and how it answers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from npukit.errors import NpukitError

DEFAULT_TOKENS = 1024
DTYPES = ("auto", "bfloat16", "float16", "float32")


def _dtype(name: str) -> str:
    if name not in DTYPES:
        raise NpukitError(f"--dtype {name}: choose one of {', '.join(DTYPES)}.")
    return name


ModelArgument = Annotated[
    str,
    typer.Argument(help="Folder or hub name of a model, of a LoRA adapter or of a training run.", show_default=False),
]
AdapterOption = Annotated[
    list[str] | None,
    typer.Option("--adapter", show_default=False, help="LoRA adapter to merge into the model. Repeatable."),
]
DtypeOption = Annotated[str, typer.Option("--dtype", callback=_dtype, help=f"Of the weights: {', '.join(DTYPES)}.")]
TemplateOption = Annotated[
    str | None, typer.Option("--chat-template", help="Name or file of a chat template.", show_default="the tokenizer's")
]
SystemOption = Annotated[
    str | None, typer.Option("--system", help="System message for conversations without one.", show_default=False)
]
ThinkingOption = Annotated[
    bool | None,
    typer.Option(
        "--enable-thinking/--no-enable-thinking",
        help="Let the model reason first, if its chat template has a switch for it.",
    ),
]
RemoteCodeOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]
PicklesOption = Annotated[bool, typer.Option("--allow-pickles", help="Load weights that are not in safetensors.")]
LongestOption = Annotated[
    int | None,
    typer.Option(
        "--max-model-len", min=2, help="Longest prompt with its answer, in tokens.", show_default="the model's"
    ),
]
RowsOption = Annotated[int, typer.Option("--max-num-seqs", min=1, help="Answers generated at the same time.")]
LookupOption = Annotated[
    int,
    typer.Option(
        "--prompt-lookup",
        min=0,
        max=64,
        help="Guess up to this many tokens at once from the prompt and the answer so far; answers stay the same.",
    ),
]


def _sampling(name: str, help: str, **limits: Any) -> Any:
    return typer.Option(name, help=help, show_default=False, rich_help_panel="Sampling", **limits)


TemperatureOption = Annotated[
    float | None, _sampling("--temperature", "Randomness; 0 always chooses the likeliest token.", min=0)
]
TopPOption = Annotated[
    float | None, _sampling("--top-p", "Consider only the likeliest tokens up to this total probability.", min=0, max=1)
]
TopKOption = Annotated[
    int | None, _sampling("--top-k", "Consider only this many of the likeliest tokens; 0 means all.", min=-1)
]
MinPOption = Annotated[
    float | None, _sampling("--min-p", "Consider only tokens this likely relative to the likeliest.", min=0, max=1)
]
RepetitionOption = Annotated[
    float | None, _sampling("--repetition-penalty", "Above 1 makes repetitions less likely.", min=0.01)
]
TokensOption = Annotated[
    int, typer.Option("--max-new-tokens", "--max-tokens", min=1, help="Longest answer, in tokens.")
]
StopOption = Annotated[list[str] | None, _sampling("--stop", "Text that ends an answer. Repeatable.")]
SeedOption = Annotated[int, typer.Option("--seed", help="Makes sampling repeatable.")]


def sampling(
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    repetition_penalty: float | None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """What of it was given; the rest is as the model's generation_config.json says."""
    given: dict[str, Any] = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": None if top_k is None else max(0, top_k),
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "max_tokens": max_tokens,
    }
    if temperature is None and (top_p is not None or top_k is not None):
        given["temperature"] = 1.0  # whoever sets these wants to sample
    return {name: value for name, value in given.items() if value is not None}
