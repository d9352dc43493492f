"""Tools that the model calls: functions of a file, and the methods of an environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rl.conftest import log_of
from tests.rl.test_grpo import completions

from npukit.errors import NpukitError
from npukit.llm.chat.answer import HERMES
from npukit.llm.config.options import Config
from npukit.rl.rank import train
from npukit.rl.turns.tools import ToolScheduler, find_tools
from npukit.rl.turns.turn import RolloutConversation, Turn

FILE = '''
def multiply(a: int, b: int) -> int:
    """
    Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b

async def later(word: str) -> str:
    """
    Say a word.

    Args:
        word: What to say.
    """
    return word

class Counter:
    def reset(self, start, **row):
        self.count = start
        return f" It stands at {start}."

    def add(self, number: int) -> str:
        """
        Add a number.

        Args:
            number: What to add.
        """
        self.count += number
        return f"now {self.count}"

    async def get_reward(self) -> float:
        return float(self.count)

class Broken(Counter):
    def __init__(self):
        raise RuntimeError("no display")

class Quiet(Counter):
    get_reward = None

class Wordy(Counter):
    def get_reward(self):
        return "much"

def bare(a):
    return a

def low(prompts, completions, completion_ids, **kwargs):
    assert all(said["role"] != "tools" for prompt in prompts for said in prompt)
    return [sum(token < 100 for token in ids) / len(ids) for ids in completion_ids]
'''
TEMPLATE = """{% if tools %}<|im_start|>system
<tool_call> of {{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.role == "assistant" %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}
{% else %}{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
ASKED = [{"role": "user", "content": "How many?"}]


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def talk(tmp_path: Path) -> Callable[..., Any]:
    """`talk(scheduler, "an answer", …)`: what a scheduler begins with, and its replies to answers."""
    (tmp_path / "plugin.py").write_text(FILE)

    def made(tools: list[str], environment: str | None, *answers: str) -> Any:
        said = list(answers)
        found = find_tools(tools, environment, [tmp_path / "plugin.py"], rewards=environment is not None)
        scheduler = ToolScheduler(*found, HERMES, lambda ids: said[ids[0]])
        begun = scheduler.begin([RolloutConversation("0", ASKED, {"start": 3})])
        turns = [Turn("0", n + 1, text, [n], [0.0], False, is_last=False) for n, text in enumerate(said)]
        return begun[0], [scheduler.next([turn])[0] for turn in turns]

    return made


def test_functions_are_offered_and_called(talk: Any) -> None:
    both = (
        f"<think>{called('later', word='no')}</think>Well. {called('multiply', a=3, b=4)}\n{called('later', word='x')}"
    )
    failing = called("divide") + called("multiply", a=1) + called("multiply", a="b", b=2)
    begun, replies = talk(["multiply", "later"], None, both, failing, "12")
    offered = {tool["function"]["name"]: tool["function"] for tool in json.loads(begun[0]["content"])}
    assert begun[0]["role"] == "tools" and begun[1:] == ASKED and list(offered) == ["multiply", "later"]
    assert offered["multiply"]["parameters"]["required"] == ["a", "b"]
    assert [(said["name"], said["content"]) for said in replies[0].messages] == [("multiply", "12"), ("later", "x")]
    contents = [said["content"] for said in replies[1].messages]
    assert "divide" in contents[0] and "missing" in contents[1] and contents[2] == "bb"
    assert [reply.goes_on for reply in replies] == [True, True, False]
    assert replies[2].infos == {"tool_calls": 5, "tool_failures": 2}


def test_each_conversation_has_an_environment(talk: Any) -> None:
    begun, replies = talk([], "Counter", called("add", number=4), called("reset", start=1), "7")
    assert begun[1]["content"] == "How many? It stands at 3." and '"add"' in begun[0]["content"]
    assert "get_reward" not in begun[0]["content"] and ASKED == [{"role": "user", "content": "How many?"}]
    assert replies[0].messages[0]["content"] == "now 7" and "not found" in replies[1].messages[0]["content"]
    assert replies[2].infos["total_reward"] == 7 and "total_reward" not in replies[0].infos


@pytest.mark.parametrize(
    "wanted",
    [(["multiplied"], None), (["bare"], None), ([], "Missing"), ([], "multiply"), ([], "Broken"), ([], "Quiet")],
)
def test_tools_that_are_none_are_refused(talk: Any, wanted: Any) -> None:
    with pytest.raises(NpukitError, match=r"grpo\.(tools|environment_factory)"):
        talk(*wanted)


def test_a_reward_of_an_environment_is_a_number(talk: Any) -> None:
    (reply,) = talk([], "Wordy", "7")[1]
    assert reply.problem and not reply.goes_on and not reply.infos


def test_a_training_with_tools(counting: Callable[..., Config], tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(FILE)
    grpo = {"tools": ["multiply"], "environment_factory": "Counter", "use_gym_env": True, "max_completion_length": 8}
    rows = [{"messages": [{"role": "user", "content": f"Say {number}."}], "start": number} for number in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = {"max_steps": 2, "batch_size": 8}
    with pytest.raises(NpukitError, match=r"grpo\.tools"):  # its own template says nothing of tools
        train(counting(grpo=grpo, training=training))
    (tmp_path / "tools.jinja").write_text(TEMPLATE)
    train(counting(grpo=grpo, training=training, data={"template": str(tmp_path / "tools.jinja")}))
    answers = completions(tmp_path / "run")
    assert len(log_of(tmp_path / "run")) == 2
    for answer in answers:
        offered = json.loads(answer["messages"][0]["content"])
        assert [tool["function"]["name"] for tool in offered] == ["multiply", "add"]
        assert set(answer["rewards"]) == {"low", "gym_reward"} and answer["rewards"]["gym_reward"] is not None
