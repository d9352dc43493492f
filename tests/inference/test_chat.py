"""A conversation in a real terminal, and what it remembers."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
import torch

from npukit.errors import NpukitError
from npukit.inference.chat import Conversation
from npukit.inference.engine import Engine
from npukit.inference.loading import load
from npukit.inference.start import UseJob, handed_over
from npukit.launch.devices import choose
from npukit.llm.config.use import Use


@pytest.fixture(scope="module")
def parts(tiny_qwen2: Path) -> tuple[Any, Any]:
    loaded = load(Use(model={"path": str(tiny_qwen2)}), torch.device("cpu"))
    return loaded, Engine(loaded.model)


@pytest.fixture
def talk(parts: tuple[Any, Any]) -> Conversation:
    talk = Conversation(*parts)
    talk.set("max_tokens", "8")
    return talk


def say(talk: Conversation, text: str, **options: Any) -> str:
    return "".join(part.text for part in talk.answer(text, **options))


def test_history_retry_and_figures(talk: Conversation) -> None:
    first = say(talk, "Who are you?")
    assert talk.figures and 1 <= talk.figures.tokens <= 8 and talk.figures.first > 0
    assert [message["role"] for message in talk.messages] == ["user", "assistant"]
    second = say(talk, "Who are you?")
    assert len(talk.messages) == 4
    assert say(talk, talk.take_back()) == second, "the same question after the same history"
    talk.clear()
    assert say(talk, "Who are you?") == first


def test_an_answer_can_be_stopped(talk: Conversation) -> None:
    talk.set("max_tokens", "500")
    count = 0

    def stopped() -> bool:
        nonlocal count
        count += 1
        return count > 5

    say(talk, "Tell me all.", stopped=stopped)
    assert talk.figures and talk.figures.finish_reason == "cancelled" and talk.figures.tokens < 10
    assert talk.messages[-1]["role"] == "assistant"
    talk.set("max_tokens", "3")
    say(talk, "And now?")
    assert talk.figures.tokens <= 3, "the engine goes on as if nothing had been stopped"


def test_save_and_load(talk: Conversation, tmp_path: Path) -> None:
    talk.system = "Be brief."
    say(talk, "Who?")
    talk.save(tmp_path / "talk.json")
    before = talk.messages
    talk.clear()
    talk.system = None
    talk.load(tmp_path / "talk.json")
    assert [talk.messages, talk.system] == [before, "Be brief."]
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(NpukitError, match="not a saved"):
        talk.load(tmp_path / "other.json")


@pytest.mark.parametrize(("name", "value"), [("temprature", "1"), ("temperature", "hot"), ("top_k", "-3")])
def test_wrong_settings_are_told(talk: Conversation, name: str, value: str) -> None:
    before = talk.sampling
    with pytest.raises(NpukitError):
        talk.set(name, value)
    assert talk.sampling == before


def test_a_question_that_does_not_fit_leaves_the_history(talk: Conversation) -> None:
    say(talk, "Hi")
    with pytest.raises(NpukitError, match="tokens"):
        say(talk, "long " * 5000)
    assert len(talk.messages) == 2


@pytest.fixture
def terminal(tiny_qwen2: Path, tmp_path: Path) -> Iterator[Any]:
    use = Use(model={"path": str(tiny_qwen2)}, sampling={"temperature": 0, "max_new_tokens": 4000})
    variables = {
        **choose("cpu").environment(),
        **handed_over(UseJob("chat", use)),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    command = [sys.executable, ["-m", "npukit.inference.process"]]
    child = pexpect.spawn(*command, env=variables, cwd=str(tmp_path), encoding="utf-8", timeout=600)
    yield child
    child.close(force=True)


def test_in_a_terminal(terminal: Any, tmp_path: Path) -> None:
    terminal.expect("on the CPU")
    terminal.expect("User: ")
    terminal.sendline("/set max_tokens=5")
    terminal.expect("max_tokens=5")
    terminal.sendline("Who are you?")
    terminal.expect("Assistant: ")
    terminal.expect(r"\(\d+ tokens, [\d.]+ a second, the first after [\d.]+ s")
    terminal.sendline("/set max_tokens=3500")
    terminal.expect("User: ")
    terminal.sendline("Tell me everything.")
    terminal.expect("Assistant: ")
    terminal.expect(".")
    terminal.kill(signal.SIGINT)
    terminal.expect("stopped")
    terminal.expect("User: ")
    terminal.sendintr()
    terminal.expect("Ctrl-D to leave")
    terminal.sendline("/nonsense")
    terminal.expect("no command /nonsense")
    terminal.sendline("/save talk.json")
    terminal.expect("Saved")
    terminal.sendline("clear")
    terminal.expect("forgotten")
    terminal.sendline("exit")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    saved = json.loads((tmp_path / "talk.json").read_text())["messages"]
    assert [message["role"] for message in saved] == ["user", "assistant"] * 2
