"""Many requests on one engine's thread: nobody gets another's tokens, and whoever leaves or stalls harms nobody."""

from __future__ import annotations

import asyncio
import time

import pytest

from npukit.errors import NpukitError
from npukit.inference.engine.request import Output, Request, Token
from npukit.inference.service import Service


class Parrot:
    """An engine that gives each request one token of its own prompt a step."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause = pause
        self.cancelled: list[int] = []
        self.fails = False
        self._requests: dict[int, tuple[Request, int]] = {}
        self._next = 0

    @property
    def is_idle(self) -> bool:
        return not self._requests

    def add_request(self, request: Request) -> int:
        if not request.prompt:
            raise NpukitError("The prompt is empty.")
        self._next += 1
        self._requests[self._next] = (request, 0)
        return self._next

    def abort_request(self, request_id: int) -> None:
        self._requests.pop(request_id, None)
        self.cancelled.append(request_id)

    def step(self) -> list[Output]:
        time.sleep(self.pause)
        if self.fails:
            raise ValueError("out of order")
        outputs = []
        for number, (request, at) in list(self._requests.items()):
            last = at + 1 == min(len(request.prompt), request.sampling.max_tokens or len(request.prompt))
            outputs.append(Output(number, Token(request.prompt[at]), "length" if last else None))
            if last:
                del self._requests[number]
            else:
                self._requests[number] = (request, at + 1)
        return outputs


async def collect(service: Service, prompt: tuple[int, ...]) -> tuple[list[int], str | None]:
    outputs = [output async for batch in await service.submit(Request(prompt)) for output in batch]
    return [output.token.id for output in outputs if output.token], outputs[-1].finish_reason


def test_everybody_gets_their_own_tokens() -> None:
    async def main() -> None:
        async with Service(Parrot()) as service:
            prompts = [tuple(range(number, number + 5 + number % 7)) for number in range(100)]
            answers = await asyncio.gather(*(collect(service, prompt) for prompt in prompts))
        assert answers == [(list(prompt), "length") for prompt in prompts]

    asyncio.run(main())


def test_what_the_engine_refuses_is_raised_and_the_others_go_on() -> None:
    async def main() -> None:
        async with Service(Parrot()) as service:
            with pytest.raises(NpukitError):
                await service.submit(Request(()))
            assert (await collect(service, (1, 2)))[0] == [1, 2]

    asyncio.run(main())


def test_who_leaves_frees_the_place() -> None:
    async def main() -> None:
        engine = Parrot(pause=0.005)
        async with Service(engine) as service:
            async for _ in (answering := await service.submit(Request(tuple(range(1000))))):
                answering.cancel()
            adding = asyncio.ensure_future(service.submit(Request(tuple(range(1000)))))
            await asyncio.sleep(0)
            adding.cancel()  # before it is known whether the engine has taken it
            assert (await collect(service, (1, 2)))[0] == [1, 2]
            await service.call(lambda: None)
            assert engine.cancelled == [1, 2] and engine.is_idle

    asyncio.run(main())


def test_who_does_not_read_is_dropped_and_holds_up_nobody() -> None:
    async def main() -> None:
        engine = Parrot()
        async with Service(engine, queue=10) as service:
            stalled = await service.submit(Request(tuple(range(10_000))))
            while not engine.cancelled:
                await asyncio.sleep(0.001)
            assert (await collect(service, (7, 8, 9)))[0] == [7, 8, 9]
            outputs = [output async for batch in stalled for output in batch]
        assert len(outputs) == 10 and outputs[-1].finish_reason == "error"

    asyncio.run(main())


def test_an_engine_that_fails_ends_every_answer() -> None:
    async def main() -> None:
        engine = Parrot(pause=0.005)
        async with Service(engine) as service:
            running = [await service.submit(Request(tuple(range(1000)))) for _ in range(3)]
            engine.fails = True
            for answering in running:
                assert [output async for batch in answering for output in batch][-1].finish_reason == "error"
            assert isinstance(service.failure, ValueError)
            with pytest.raises(RuntimeError):
                await service.submit(Request((1,)))

    asyncio.run(main())
