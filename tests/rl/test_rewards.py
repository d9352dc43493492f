"""Reward functions: npukit's own, those of a user's file in both forms, and what misbehaves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.llm.config.reinforcement import GrpoOptions, RewardOptions
from npukit.rl.rewards.answers import AnswerBatch
from npukit.rl.rewards.calling import find_functions, score
from npukit.rl.rewards.functions import built_in, toolbench
from npukit.rl.rewards.scorer import Scorer

QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]


def answers(*texts: str, **columns: list[Any]) -> AnswerBatch:
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)] or [{}] * len(
        texts
    )
    return AnswerBatch([QUESTION] * len(texts), texts, [list(range(len(text.split()))) for text in texts], rows)


def rewards_of(file: Path, *texts: str, **columns: list[Any]) -> dict[str, list[float]]:
    functions = find_functions(RewardOptions(plugins=[file]), GrpoOptions())
    return {name: score(name, function, answers(*texts, **columns)).rewards for name, function in functions.items()}


def test_the_functions_that_need_no_file() -> None:
    made = built_in(RewardOptions(soft_cache_length=4, repetition_n_grams=2), longest=10)
    right = "<think>a\nb</think> \n <answer>2</answer>"
    assert made["format"]([right, f"{right} ", f"x{right}", "<answer>2</answer>"]) == [1, 0, 0, 0]
    assert made["react_format"](["<think>a</think>\nAction: f\nAction Input: {}", right]) == [1, 0]
    assert made["repetition"](["a b A b a b", "one", ""]) == pytest.approx([-(1 - 2 / 5), 0, 0])
    lengths = [[0] * length for length in (6, 8, 10, 12)]
    assert made["soft_overlong"]([""] * 4, response_token_ids=lengths) == [0, -0.5, -1, -1.5]


def test_mathematics_is_compared_however_it_is_written() -> None:
    pytest.importorskip("math_verify")
    made = built_in(RewardOptions(), longest=10)
    texts = [r"so \boxed{\frac{1}{2}}", "<answer>0.5</answer>", "<answer>2</answer>", "0.5", r"\boxed{1}"]
    solutions = ["$0.5$", "<answer>1/2</answer>", "$0.5$", "$0.5$", "no number"]
    assert made["accuracy"](texts, solution=solutions) == [1, 1, 0, 0, 0]
    lengths = [[0] * length for length in (0, 10, 0, 10, 5)]
    cosine = made["cosine"](texts, solution=solutions, response_token_ids=lengths)
    assert cosine == pytest.approx([1.0, 0.5, -0.5, 0.0, -0.25])


def test_a_file_in_ms_swifts_form(tmp_path: Path) -> None:
    file = tmp_path / "plugin.py"
    file.write_text(
        """
from swift.rewards import ORM, AsyncORM, orms, rm_plugins
from swift.rollout.multi_turn import MultiTurnScheduler, multi_turns
from swift.utils import get_logger, to_device

logger = get_logger()

class Length(ORM):
    def __call__(self, completions, solution, **kwargs):
        assert kwargs["messages"][0][-1] == {"role": "assistant", "content": completions[0]}
        assert kwargs["trainer_state"].global_step == 0 and self.args.max_completion_length == 512
        return [float(len(text) == wanted) for text, wanted in zip(completions, solution)]

class Slow(AsyncORM):
    async def __call__(self, completions, **kwargs):
        import asyncio
        await asyncio.sleep(0)
        return [len(ids) for ids in kwargs["response_token_ids"]]

class Scheduler(MultiTurnScheduler):
    pass

orms["length"], orms["slow"] = Length, Slow
multi_turns["mine"] = Scheduler
"""
    )
    assert rewards_of(file, "ab", "a b", solution=[2, 2]) == {"length": [1, 0], "slow": [1, 2]}
    source = (
        "\nclass Needy(ORM):\n    def __init__(self, args):\n        assert 0, 'no package'\norms['needy'] = Needy\n"
    )
    file.write_text(file.read_text() + source)
    assert list(find_functions(RewardOptions(plugins=[file], functions=["slow"]), GrpoOptions())) == ["slow"]
    with pytest.raises(NpukitError, match="no package"):
        find_functions(RewardOptions(plugins=[file], functions=["needy"]), GrpoOptions())


def test_a_file_in_trls_form(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(
        """
from helper import bonus

def _hidden(completions): ...
def unrelated(text): ...

def of_messages(prompts, completions, completion_ids, **kwargs):
    assert prompts[0][0]["role"] == "user"
    return [len(each[0]["content"]) + bonus for each in completions]

async def strict(completions, level):
    return level
"""
    )
    (tmp_path / "helper.py").write_text("bonus = 10\n")
    assert rewards_of(file, "ab", "c", level=[3, None]) == {
        "of_messages": [12, 11],
        "strict": [3, pytest.approx(math.nan, nan_ok=True)],
    }
    file.write_text(
        "def text(prompts, completions, prompt):\n    assert prompts == prompt\n    return list(map(len, completions))"
    )
    assert rewards_of(file, "ab", prompt=["Why?"]) == {"text": [2]}  # text prompts have text answers


HOSTILE: dict[str, tuple[str, list[float | None], list[str]]] = {
    "raises": (
        "if 'b' in completions: raise ValueError('bad')\n    return [1.0] * len(completions)",
        [1, None],
        ["raised"],
    ),
    "none": ("return None", [None, None], ["length"]),
    "length": ("return [1.0]", [None, None], ["length"]),
    "text": ("return 'good'", [None, None], ["length"]),
    "values": ("return [float('nan'), 'good']", [None, None], ["value", "value"]),
    "large": ("return [1e300, 2]", [None, 2], ["value"]),
    "reads": ("return [float(input()), 2]", [None, None], ["raised", "raised"]),
    "infinite": ("return [float('inf'), 2]", [None, 2], ["value"]),
    "no opinion": ("return [None, True]", [None, 1], []),
    "prints": ("print('hello')\n    return [1, 2]", [1, 2], []),
    "exits": ("import os\n    os._exit(3)", [None, None], ["raised"]),
    "hangs": ("import time\n    time.sleep(99)", [None, None], ["timeout"]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_function_that_misbehaves_costs_its_rewards_and_nothing_else(tmp_path: Path, case: str) -> None:
    body, expected, kinds = HOSTILE[case]
    file = tmp_path / "plugin.py"
    file.write_text(
        "from swift.plugin import ORM, orms\nclass Mine(ORM):\n  def __call__(self, completions, **kwargs):\n    "
        + body
        + "\norms['mine'] = Mine\n"
    )
    options = RewardOptions(functions=["mine", "format"], plugins=[file], timeout=1.0 if case == "hangs" else 60.0)
    with Scorer(options, GrpoOptions(), []) as scorer:
        for _ in range(2):  # it is still there afterwards
            rewards, problems = scorer.score(answers("a", "b"))
            assert [None if math.isnan(row[0]) else row[0] for row in rewards] == expected
            assert [row[1] for row in rewards] == [0, 0]
            assert [(problem.function, problem.kind) for problem in problems] == [("mine", kind) for kind in kinds]
    if case == "raises":
        assert problems[0].answer == "b" and "ValueError: bad" in str(problems[0])


def test_what_cannot_work_is_refused_before_training(tmp_path: Path) -> None:
    file = tmp_path / "plugin.py"

    def refused(match: str, columns: list[str], *functions: str) -> None:
        with pytest.raises(NpukitError, match=match):
            Scorer(RewardOptions(functions=functions, plugins=[file]), GrpoOptions(), columns)

    refused("there is no Python file", [], "mine")
    file.write_text("import nothing_like_this\n")
    refused("cannot be run: ModuleNotFoundError", [])
    file.write_text("def mine(completions, target):\n    return [0.0]\n")
    refused("there is no reward function mime: did you mean mine", [], "mime")
    refused("mine needs the column target; the data has question", ["question"], "mine")


def test_an_action_is_right_where_its_tool_and_arguments_are() -> None:
    wanted = 'Action: add\nAction Input: {"a": 1, "b": 2}'
    said = [
        f"{wanted}\nObservation:",
        f"Action: x\nAction Input: {{}}\n{wanted}",
        'Action: add\nAction Input: {"a": 1}',
        wanted.replace("add", "sub"),
        "Action: add\nAction Input: 1",
        "3",
    ]
    assert toolbench(said, [wanted] * len(said)) == [1, 1, 0, 0, 0, 0]
    assert toolbench(["Action: now", "so"], ["Action: now\nAction Input: {}", "thus"]) == [1, 1]


def test_the_verb_tries_functions_on_rows(npukit: Callable[..., Any], tmp_path: Path) -> None:
    rows = [
        {"messages": [*QUESTION, {"role": "assistant", "content": "<think>1</think><answer>2</answer>"}]},
        {"prompt": "Why?", "completion": "Because."},
    ]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "mine.py"
    file.write_text("def short(completions):\n    return [None if len(each) > 1 else 1.0 for each in completions]\n")
    shown = npukit("rewards", "format", "--data", data)
    assert shown.returncode == 0 and "Because." in shown.stdout
    result = json.loads(npukit("rewards", file, "--data", data, "--json").stdout)["result"]
    assert (result["functions"], result["rewards"], result["means"]) == (["short"], [[1.0], [None]], [1.0])
    file.write_text("def short(completions):\n    raise KeyError('x')\n")
    failing = npukit("rewards", file, "--data", data)
    assert failing.returncode == 1 and "KeyError" in failing.stdout
    assert npukit("rewards", "formt", "--data", data).returncode == 2
    file.write_text("def short(texts):\n    return texts\n")
    assert npukit("rewards", file, "--data", data).returncode == npukit("rewards", "--data", data).returncode == 2
