"""An engine in a process of its own: requests there and back, and the end of either process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.inference.test_service import Parrot, collect

from npukit.errors import NpukitError
from npukit.inference.engine.request import Output, Request, Stats
from npukit.inference.remote import RemoteEngine
from npukit.inference.service import Service


class Remote(Parrot):
    """The parrot with what a server asks an engine for."""

    max_model_len, num_cache_tokens, vocab_size, device = 10_000, 80_000, 10_000, "cpu"

    def stats(self) -> Stats:
        return Stats(*range(10))

    def unload_adapter(self, name: str) -> None:
        raise NpukitError(f"There is no adapter {name}.")


def compile_grammar(text: str) -> str:
    if text == "wrong":
        raise NpukitError("The grammar cannot be used.")
    time.sleep(0.3 if text == "slow" else 0)
    return text


def make(pause: float = 0.0) -> tuple[Any, Any]:
    return Remote(pause), lambda: SimpleNamespace(compile=compile_grammar)


@pytest.fixture
def engine() -> Iterator[RemoteEngine]:
    with RemoteEngine(lambda: make(0.002)) as engine:
        engine.wait_until_ready()
        yield engine


def with_grammar(text: str) -> Request:
    return Request((1, 2, 3), grammar=SimpleNamespace(grammar=text))


def outputs_of(engine: RemoteEngine, numbers: set[int]) -> dict[int, list[Output]]:
    """All outputs until each of these requests has ended."""
    outputs: dict[int, list[Output]] = {number: [] for number in numbers}
    while not all(outputs[number] and outputs[number][-1].finish_reason for number in numbers):
        for output in engine.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def test_everybody_gets_their_own_tokens(engine: RemoteEngine) -> None:
    async def main() -> None:
        async with Service(engine) as service:
            prompts = [tuple(range(number, number + 5 + number % 7)) for number in range(100)]
            answers = await asyncio.gather(*(collect(service, prompt) for prompt in prompts))
            assert answers == [(list(prompt), "length") for prompt in prompts]
            with pytest.raises(NpukitError):
                await service.submit(Request((10_000,)))
            assert await service.call(engine.stats) == Stats(*range(10))
            with pytest.raises(NpukitError):
                await service.call(lambda: engine.unload_adapter("a"))

    asyncio.run(main())


def test_a_grammar_is_compiled_aside(engine: RemoteEngine) -> None:
    slow, quick, wrong = (engine.add_request(with_grammar(text)) for text in ("slow", "quick", "wrong"))
    plain = engine.add_request(Request((1, 2, 3)))
    ended: list[int] = []
    while len(ended) < 4:
        ended += [output.request_id for output in engine.step() if output.finish_reason]
    assert ended[-1] == slow and set(ended) == {slow, quick, wrong, plain}


def test_what_is_given_up_ends(engine: RemoteEngine) -> None:
    running, compiling = engine.add_request(Request(tuple(range(9_000)))), engine.add_request(with_grammar("slow"))
    wrong = engine.add_request(with_grammar("wrong"))
    for number in (compiling, wrong):
        engine.abort_request(number)
    outputs = outputs_of(engine, {compiling, wrong})
    assert outputs[compiling][-1].finish_reason == "cancelled" and outputs[wrong][-1].finish_reason == "error"
    assert not engine.is_idle
    engine.abort_request(running)


def test_an_engine_that_cannot_be_made_says_why() -> None:
    def fail() -> tuple[Any, Any]:
        raise NpukitError("There is no model.")

    with RemoteEngine(fail) as engine, pytest.raises(NpukitError, match="There is no model"):
        engine.wait_until_ready()


def test_a_killed_engine_ends_every_answer(engine: RemoteEngine) -> None:
    async def main() -> None:
        async with Service(engine) as service:
            running = [await service.submit(Request(tuple(range(9_000)))) for _ in range(3)]
            os.kill(engine._process.pid or 0, signal.SIGKILL)
            for stream in running:
                assert [output async for batch in stream for output in batch][-1].finish_reason == "error"
            assert service.failure is not None

    asyncio.run(main())


def test_the_engine_ends_with_a_killed_server() -> None:
    code = """
import time
from tests.inference.test_remote import RemoteEngine, Request, make
with RemoteEngine(lambda: make(0.01)) as engine:
    engine.wait_until_ready()
    engine.add_request(Request(tuple(range(9_000))))
    print("ready", flush=True)
    time.sleep(600)
"""
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert server.stdout and server.stdout.readline()
    server.kill()
    server.wait()
    assert server.stdout.read() == "", "the pipe ends with the last process that can write to it"
