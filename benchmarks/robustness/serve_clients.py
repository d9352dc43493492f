"""Many clients at once, well and badly behaved: is every answer whole, one's own and the same as offline?

    python -m benchmarks serve_clients [--clients 64] [--seconds 300]

Each client sends one request after another, chosen at random: whole answers and streams, by the model or one of its
adapters, some with a grammar; streams that are left in the middle, streams that are read slowly, bodies that are too
large or malformed. An administrator loads and removes an adapter all the while. Greedy answers must equal those of an
engine in this process. At the end the server gets SIGTERM, and every answer that runs must still end.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from benchmarks.tiny_server import Running, make_adapter, make_model, served

QUESTIONS = [f"What is the {word} of {other}?" for word in ("capital", "sky", "colour") for other in ("France", "it")]
ADAPTERS = ("first", "second")
MODELS = ("tiny", *ADAPTERS)
LONGEST = 48
CHOICES = ["yes", "no", "perhaps"]


@dataclass
class Tally:
    """What happened."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def expect(self, kind: str, found: Any, wanted: Any) -> None:
        """Count, and keep what is not as it should be."""
        self.counts[kind] += 1
        if found != wanted:
            self.wrong.append(f"{kind}: {found!r} instead of {wanted!r}"[:300])


def offline(model: Path, adapters: dict[str, Path]) -> dict[tuple[str, str], str]:
    """What an engine in this process says, one question after the other."""
    from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
    from npukit.inference.loading import load
    from npukit.inference.text import TextStream
    from npukit.llm.config.use import Use

    loaded = load(Use(model={"path": str(model)}))
    engine = Engine(loaded.model, EngineOptions(max_num_seqs=1))
    for name, folder in adapters.items():
        engine.load_adapter(name, folder)
    answers = {}
    for name in MODELS:
        for question in QUESTIONS:
            prompt = loaded.chat.prompt([{"role": "user", "content": question}]).ids
            sampling = SamplingParams(max_tokens=LONGEST, temperature=0, end_tokens=loaded.end_tokens)
            request = Request(tuple(prompt), sampling, None if name == "tiny" else name)
            text = TextStream(loaded.tokenizer)
            ids = engine.generate([request])[0].ids
            answers[name, question] = "".join(text.add(token) for token in ids) + text.end()
    return answers


class Client:
    """One client with habits."""

    def __init__(self, http: httpx2.AsyncClient, answers: dict[tuple[str, str], str], tally: Tally, seed: int) -> None:
        self._http, self._answers, self._tally = http, answers, tally
        self._pick = random.Random(seed)

    async def run(self, end: float) -> None:
        """Ask until the time is over."""
        habits = [self.ask] * 6 + [self.stream] * 6 + [self.leave] * 3 + [self.read_slowly, self.choose, self.bad_body]
        while time.monotonic() < end:
            await self._pick.choice(habits)()

    def _request(self) -> tuple[dict[str, Any], str]:
        model, question = self._pick.choice(MODELS), self._pick.choice(QUESTIONS)
        body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0}
        return {**body, "max_tokens": LONGEST}, self._answers[model, question]

    async def ask(self) -> None:
        """A whole answer."""
        body, wanted = self._request()
        answer = await self._http.post("/v1/chat/completions", json=body)
        self._tally.expect("answers", answer.json()["choices"][0]["message"]["content"], wanted)

    async def stream(self, pause: float = 0.0, kind: str = "streams") -> None:
        """A streamed answer; with a pause after each event the reader is a slow one."""
        body, wanted = self._request()
        text = ""
        async with self._http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    text += content(line)
                    await asyncio.sleep(pause)
        self._tally.expect(kind, text, wanted)

    async def read_slowly(self) -> None:
        """As a bad connection does."""
        await self.stream(0.05, "slow readers")

    async def leave(self) -> None:
        """Close the connection in the middle of an answer."""
        body, _ = self._request()
        after = self._pick.randrange(6)
        async with self._http.stream(
            "POST", "/v1/chat/completions", json={**body, "stream": True, "ignore_eos": True, "max_tokens": 400}
        ) as answer:
            async for _ in answer.aiter_lines():
                after -= 1
                if after < 0:
                    break
        self._tally.counts["left"] += 1

    async def choose(self) -> None:
        """An answer by a grammar."""
        body, _ = self._request()
        answer = await self._http.post("/v1/chat/completions", json={**body, "structured_outputs": {"choice": CHOICES}})
        text = answer.json()["choices"][0]["message"]["content"]
        self._tally.expect("choices", text in CHOICES, True)

    async def bad_body(self) -> None:
        """What no client should send."""
        bad = self._pick.choice(
            [b"{", b"x" * 300_000, b'{"messages": 5}', b'{"messages": [{"role": "user"}]}', b"\xff"]
        )
        answer = await self._http.post(
            "/v1/chat/completions", content=bad, headers={"Content-Type": "application/json"}
        )
        self._tally.expect("bad requests", answer.status_code, 400)


def content(line: str) -> str:
    """The text in an event."""
    import json

    event = json.loads(line.removeprefix("data: "))
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


async def change_adapters(http: httpx2.AsyncClient, folder: Path, tally: Tally, end: float) -> None:
    """Load an adapter, ask it, remove it, again and again."""
    while time.monotonic() < end:
        for path, wanted in (("load", 200), ("load", 400), ("unload", 200), ("unload", 404)):
            body = {"lora_name": "third", "lora_path": str(folder)}
            answer = await http.post(f"/v1/{path}_lora_adapter", json=body)
            while path == "load" and wanted == 200 and answer.status_code == 400:  # the one before is still in use
                await asyncio.sleep(0.05)
                answer = await http.post(f"/v1/{path}_lora_adapter", json=body)
            tally.expect("adapter changes", answer.status_code, wanted)
            await asyncio.sleep(0.1)


async def watch(server: Running, tally: Tally, end: float) -> None:
    """Remember the server's memory."""
    while time.monotonic() < end:
        tally.memory.append(server.resident())
        await asyncio.sleep(min(5.0, max(0.2, (end - time.monotonic()) / 10)))


async def load_it(
    server: Running, answers: dict[tuple[str, str], str], adapter: Path, clients: int, seconds: float
) -> Tally:
    """Everybody at once; then SIGTERM while answers run."""
    tally, end = Tally(), time.monotonic() + seconds
    limits = httpx2.Limits(max_connections=clients + 4, max_keepalive_connections=clients + 4)
    async with httpx2.AsyncClient(base_url=server.url, timeout=120, limits=limits) as http:
        every = [Client(http, answers, tally, seed) for seed in range(clients)]
        administrator = change_adapters(http, adapter, tally, end)
        await asyncio.gather(*(client.run(end) for client in every), administrator, watch(server, tally, end))
        last = [asyncio.ensure_future(client.stream(0.0, "at SIGTERM")) for client in every[:8]]
        while tally.counts["at SIGTERM"] == 0 and not all(task.done() for task in last):
            await asyncio.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(*last, return_exceptions=True)
    return tally


def run(clients: int, seconds: float) -> Tally:
    """The whole of it, with a model made for it.

    >>> run(clients=8, seconds=5).wrong
    []
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model", longest=2048)
        adapters = {name_: make_adapter(model, folder / name_, seed) for seed, name_ in enumerate(ADAPTERS, 1)}
        answers = offline(model, adapters)
        named = [word for adapter, path in adapters.items() for word in ("--adapter", f"{adapter}={path}")]
        # A small cache is soon in use as a whole, and memory that still grows then is lost.
        size = ["--max-num-seqs", "64", "--max-model-len", "512", "--max-body", "0.2"]
        options = ["--served-model-name", "tiny", *named, "--allow-adapter-changes", *size]
        with served(model, options) as server:
            tally = asyncio.run(load_it(server, answers, adapters["first"], clients, seconds))
            tally.expect("exit codes", server.process.wait(60), 0)
    return tally


def main(clients: int = 64, seconds: float = 300) -> None:
    tally = run(clients, seconds)
    for kind, number in sorted(tally.counts.items()):
        print(f"{kind:16} {number}")
    settled = tally.memory[len(tally.memory) // 5 :]
    print(
        f"memory           {settled[0] / 2**20:.0f} MiB after a fifth of the time, {settled[-1] / 2**20:.0f} at the end"
    )
    print(f"wrong            {len(tally.wrong)}", *tally.wrong[:10], sep="\n  ")
    raise SystemExit(bool(tally.wrong))
