"""npukit's built-in reward functions, as ms-swift defines them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from npukit.llm.config.reinforcement import RewardOptions

Function = Callable[..., Any]
ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
FORMAT = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>\Z", re.DOTALL)
REACT = re.compile(r"^<think>.*?</think>\s*Action:.*?Action Input:.*?$", re.DOTALL | re.MULTILINE)


def built_in(options: RewardOptions, longest: int) -> dict[str, Function]:
    """All functions by name. An answer has up to `longest` tokens.

    >>> built_in(RewardOptions(), 512)["format"](["<think>1</think><answer>2</answer>"])
    [1.0]
    """
    return {
        "accuracy": accuracy,
        "format": format,
        "react_format": react_format,
        "toolbench": toolbench,
        "cosine": partial(cosine, options, longest),
        "repetition": partial(repetition, options),
        "soft_overlong": partial(soft_overlong, options, longest),
    }


def accuracy(completions: Sequence[str], solution: Sequence[str], **_: Any) -> list[float]:
    """1 if the answer is mathematically equal to the solution, however it is written; 0 otherwise."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    written = NormalizationConfig(nits=False, malformed_operators=False, basic_latex=True, boxed="all", units=True)
    latex = LatexExtractionConfig(
        normalization_config=written, boxed_match_priority=0, try_extract_without_anchor=False
    )

    def is_right(completion: str, wanted: str) -> bool:
        tagged = ANSWER.search(wanted)
        gold = parse(tagged[1].strip() if tagged else wanted, extraction_mode="first_match")
        if not gold:
            return False
        tagged = ANSWER.search(completion)
        text = tagged[1].strip() if tagged else completion
        how = {} if tagged else {"extraction_config": [latex]}
        return bool(verify(gold, parse(text, extraction_mode="first_match", **how)))

    return [float(is_right(*pair)) for pair in zip(completions, map(str, solution), strict=True)]


def format(completions: Sequence[str], **_: Any) -> list[float]:
    """1 for reasoning in <think> followed by an answer in <answer>, and nothing else.

    >>> format(["<think>1</think>\\n<answer>2</answer>", "2"])
    [1.0, 0.0]
    """
    return [float(FORMAT.match(text) is not None) for text in completions]


def react_format(completions: Sequence[str], **_: Any) -> list[float]:
    """1 for reasoning in <think>, followed by Action and Action Input."""
    return [float(REACT.match(text) is not None) for text in completions]


def toolbench(completions: Sequence[str], solution: Sequence[str], **_: Any) -> list[float]:
    """1 if the last Action and its input, a JSON object, match the solution's. A missing input counts as empty.

    >>> toolbench(['Action: add\\nAction Input: {"a": 1}'], ['Action: add\\nAction Input: {"a": 1}'])
    [1.0]
    """
    texts = (text.strip().removesuffix("Observation:") for text in completions)
    pairs = zip(map(_action, texts), map(_action, solution), strict=True)
    return [float(given is not None and given == wanted) for given, wanted in pairs]


def _action(text: str) -> tuple[str, dict[str, Any]] | None:
    """The last tool that is called and its arguments; None if these are not an object."""
    name = text.rpartition("Action:")[2].partition("Action Input:")[0].strip() if "Action:" in text else ""
    try:
        arguments = json.loads(text.rpartition("Action Input:")[2]) if "Action Input:" in text else {}
    except ValueError:
        return None
    return (name, arguments) if isinstance(arguments, dict) else None


def cosine(
    options: RewardOptions,
    longest: int,
    completions: Sequence[str],
    solution: Sequence[str],
    response_token_ids: Sequence[Sequence[int]],
    **_: Any,
) -> list[float]:
    """Right answers are worth more the shorter they are, wrong ones less (https://arxiv.org/abs/2502.03373)."""
    most = options.cosine_max_len or longest
    right = options.cosine_min_len_value_correct, options.cosine_max_len_value_correct
    wrong = options.cosine_min_len_value_wrong, options.cosine_max_len_value_wrong

    def value(is_right: float, tokens: int) -> float:
        short, long = right if is_right >= 1 else wrong
        return short - (short - long) * (1 - math.cos(math.pi * tokens / most)) / 2

    pairs = zip(accuracy(completions, solution), map(len, response_token_ids), strict=True)
    return [value(*pair) for pair in pairs]


def repetition(options: RewardOptions, completions: Sequence[str], **_: Any) -> list[float]:
    """A penalty for the share of phrases that occurred before.

    >>> repetition(RewardOptions(repetition_n_grams=1), ["no no no no"])
    [-0.75]
    """
    size = options.repetition_n_grams

    def penalty(text: str) -> float:
        words = text.lower().split()
        phrases = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
        return options.repetition_max_penalty * (1 - len(set(phrases)) / len(phrases)) if phrases else 0.0

    return [penalty(text) for text in completions]


def soft_overlong(
    options: RewardOptions,
    longest: int,
    completions: Sequence[str],
    response_token_ids: Sequence[Sequence[int]],
    **_: Any,
) -> list[float]:
    """A penalty that grows from 0 to 1 over the last tokens before the limit (DAPO)."""
    ramp = options.soft_cache_length or 1
    begin = (options.soft_max_length or longest) - ramp
    return [min((begin - len(ids)) / ramp, 0.0) for ids in response_token_ids]
