"""Bad requests under load: is each one refused with a 4xx, and do the others notice nothing?

    pip download --no-deps --no-binary :all: jsonschema        # its source has the JSON-Schema-Test-Suite
    python -m benchmarks serve_fuzz [--requests 5000] [--clients 64] [--schemas jsonschema-4.26.0.tar.gz] [--seed 0]

Honest clients send one question after another, first alone, then while the bad requests are sent; their answers must
not change. A bad request is a good one with something replaced: numbers at the limits of every type, half surrogate
pairs, deep nesting, NaN, other types, schemas of the suite as formats and as tools, expressions, damaged bytes and
headers. What happens to be valid may be answered; a structured answer that ends with `stop` or `tool_calls` must then
be JSON. Everything is drawn from the seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tarfile
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from benchmarks.tiny_server import make_model, served

CHAT = "/v1/chat/completions"
INTEGERS = [
    sign * (2**power + more) for power in (0, 7, 15, 31, 32, 53, 63, 64) for more in (-1, 0, 1) for sign in (1, -1)
]
FLOATS = [0.0, -0.0, 5e-324, 1e-300, 1e-40, 1e-7, 0.5, 1.0, 2.0, 3.4e38, 1.7976931348623157e308, -1e-300, -1e308]
NUMBERS = [*INTEGERS, 10**30, 10**400, *FLOATS]
OTHERS: list[Any] = [None, True, "", "1", "NaN", "x" * 5000, [], [[]], {}, {"a": 1}, [None], -1]
# What Python would not write: these strings become the bytes behind them.
RAW = {
    "@nan": "NaN",
    "@infinity": "-Infinity",
    "@overflow": "1e999",
    "@surrogate": r'"\ud800"',
    "@half": r'"a\udc00b"',
    "@deep": "[" * 5000 + "]" * 5000,
    "@nested": '{"properties": {"a": ' * 900 + "{}" + "}}" * 900,
}
SCHEMAS: list[Any] = [
    {"$ref": "#"},
    {"$defs": "x", "type": "object"},
    {"type": "object", "properties": {"a": {"$ref": "#/definitions/T"}}, "definitions": {"T": {"type": "integer"}}},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False},
    {"type": "string", "pattern": "(?:a?){5000}a{5000}"},
    {"type": "string", "minLength": 10**9},
    {"type": "array", "minItems": 10**6, "items": {"type": "null"}},
    {"type": "integer", "minimum": 10**30, "maximum": 10**30},
    {"enum": list(range(5000))},
    {"anyOf": [{"type": "object", "properties": {str(n): {"type": "string"}}} for n in range(300)]},
    {"allOf": [{"not": {}}]},
]
EXPRESSIONS = ["(", "a{1000000}", "(?:a?){5000}a{5000}", "(a+)+$", "[^", r"\p{Nothing}", "(?=x)", ".*" * 500, "\\"]
GRAMMARS = ["", "start:", "start: start", 'start: "a" start', "root ::= root", "start: /(/", "%json {"]


@dataclass
class Tally:
    """What happened."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)  # seconds of honest requests before
    under_fire: list[float] = field(default_factory=list)  # and meanwhile


class Fuzzer:
    """Makes bad requests: a path and the bytes of its body."""

    def __init__(self, openapi: dict[str, Any], schemas: list[Any], seed: int) -> None:
        self._pick = random.Random(seed)
        self._schemas = SCHEMAS + schemas
        self._fields = {
            path: sorted(self._properties(openapi, operations["post"]))
            for path, operations in openapi["paths"].items()
            if "requestBody" in operations.get("post", {}) and "lora" not in path
        }

    @staticmethod
    def _properties(openapi: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any]:
        name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        properties: dict[str, Any] = openapi["components"]["schemas"][name]["properties"]
        return properties

    def request(self) -> tuple[str, bytes]:
        """The next one."""
        path = self._pick.choice([*self._fields, CHAT, CHAT])
        body = self._good(path)
        self._pick.choice([self._numbers, self._replace, self._shape])(body, path)
        data = json.dumps(body)
        for name, literal in RAW.items():
            data = data.replace(f'"{name}"', literal)
        return path, self._damaged(data.encode())

    def _good(self, path: str) -> dict[str, Any]:
        if path == CHAT:
            return {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12}
        texts = {"/v1/responses": "input", "/v1/embeddings": "input"}
        body: dict[str, Any] = {"tokens": [5, 6]} if path == "/detokenize" else {texts.get(path, "prompt"): "Hi"}
        return body | ({"max_output_tokens": 12} if path == "/v1/responses" else {})

    def _numbers(self, body: dict[str, Any], path: str) -> None:
        for name in self._pick.choices(self._fields[path], k=3):
            body[name] = self._pick.choice(NUMBERS)
        if self._pick.random() < 0.2:
            body["logit_bias"] = {str(self._pick.choice(INTEGERS)): self._pick.choice(NUMBERS)}
        if self._pick.random() < 0.2:
            body["stop_token_ids"] = [self._pick.choice(INTEGERS) for _ in range(3)]

    def _replace(self, body: dict[str, Any], path: str) -> None:
        """Something else somewhere: in place of a field, a message, or a part of it."""
        value = self._pick.choice([*OTHERS, *RAW, *NUMBERS])
        places: list[tuple[Any, Any]] = [(body, name) for name in self._fields[path]]
        if path == CHAT:
            message = body["messages"][0]
            message |= (
                {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]} if self._pick.random() < 0.5 else {}
            )
            places += [(message, key) for key in message] * 3 + [(body["messages"], 0)] * 3
            for call in message.get("tool_calls", ()):
                places += [(call, "function"), (call["function"], "name"), (call["function"], "arguments")] * 3
        container, key = self._pick.choice(places)
        container[key] = value
        if self._pick.random() < 0.01:
            body["prompt" if path != CHAT else "user"] = "word " * 1_000_000

    def _shape(self, body: dict[str, Any], path: str) -> None:
        """Schemas, expressions and tools."""
        schema = self._pick.choice(self._schemas)
        if self._pick.random() < 0.2:
            schema = {**schema, self._pick.choice(["$defs", "const", "type", "x"]): self._pick.choice([*OTHERS, *RAW])}
        structured = {
            "json": schema,
            "regex": self._pick.choice(EXPRESSIONS),
            "grammar": self._pick.choice(GRAMMARS),
            "choice": [f"v{number}" for number in range(self._pick.choice([1, 2000, 20_000]))],
        }
        key = self._pick.choice(["json", "json", "regex", "grammar", "choice"])
        parameters = [schema, *self._pick.sample(self._schemas, 2)]
        tools = [
            {"type": "function", "function": {"name": f"f{number}", "parameters": schema_}}
            for number, schema_ in enumerate(parameters)
        ]
        if path == "/v1/responses":
            body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        elif path == CHAT and self._pick.random() < 0.4:
            body |= {"tools": tools, "tool_choice": "required"}
        elif self._pick.random() < 0.5:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        else:
            body["structured_outputs"] = {key: structured[key]}

    def _damaged(self, data: bytes) -> bytes:
        if self._pick.random() < 0.03:
            return data[: self._pick.randrange(len(data))]
        if self._pick.random() < 0.03:
            at = self._pick.randrange(len(data))
            return data[:at] + self._pick.randbytes(3) + data[at:]
        return data


async def attack(http: httpx2.AsyncClient, fuzzer: Fuzzer, count: int, tally: Tally) -> None:
    """Send so many bad requests, one after the other."""
    for _ in range(count):
        path, body = fuzzer.request()
        try:
            answer = await http.post(path, content=body, headers={"Content-Type": "application/json"})
        except httpx2.TransportError as error:
            tally.wrong.append(f"{error!r} {path} {body[:300]!r}")
            continue
        tally.statuses[answer.status_code] += 1
        if answer.status_code >= 500 or not _is_sound(answer, body):
            tally.wrong.append(f"{answer.status_code} {path} {body[:300]!r}: {answer.text[:300]}")


def _is_sound(answer: httpx2.Response, body: bytes) -> bool:
    """Whether errors have OpenAI's form, and structured answers that ended are JSON."""
    if answer.status_code >= 400:
        return bool(answer.json()["error"]["message"])
    if b'"stream": true' in body.lower() or b'"json_schema"' not in body or b'"choices"' not in answer.content:
        return True
    ended = (choice for choice in answer.json()["choices"] if choice["finish_reason"] == "stop")
    return all(_is_json(choice.get("text") or choice["message"]["content"]) for choice in ended)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


class Honest:
    """A client that asks the same question and expects the same answer."""

    def __init__(self, http: httpx2.AsyncClient, number: int, tally: Tally) -> None:
        self._http, self._tally, self._wanted = http, tally, ""
        messages = [{"role": "user", "content": f"Question {number}"}]
        self._body = {"messages": messages, "temperature": 0, "max_tokens": 16, "ignore_eos": True}

    async def ask(self, seconds: list[float]) -> None:
        """Ask once."""
        start = time.monotonic()
        try:
            answer = await self._http.post(CHAT, json=self._body)
        except httpx2.TransportError as error:
            self._tally.wrong.append(f"honest client: {error!r}")
            return
        seconds.append(time.monotonic() - start)
        text = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else None
        self._wanted = self._wanted or text or ""
        if text is None or text != self._wanted:
            self._tally.wrong.append(f"honest client: {answer.status_code} {text!r} instead of {self._wanted!r}")

    async def ask_until(self, done: asyncio.Event) -> None:
        """Ask again and again, with a pause that leaves the machine something to do for others."""
        while not done.is_set():
            await self.ask(self._tally.under_fire)
            await asyncio.sleep(1)


async def fuzz(url: str, requests: int, clients: int, schemas: list[Any], seed: int, attackers: int = 4) -> Tally:
    """Everything against a server that runs.

    >>> (await fuzz("http://127.0.0.1:8000", requests=100, clients=2, schemas=[], seed=0)).wrong
    []
    """
    tally, done = Tally(), asyncio.Event()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=clients + attackers)
    async with httpx2.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        openapi = (await http.get("/openapi.json")).json()
        honest = [Honest(http, number, tally) for number in range(clients)]
        for _ in range(3):
            await asyncio.gather(*(client.ask(tally.quiet) for client in honest))
        asking = [asyncio.ensure_future(client.ask_until(done)) for client in honest]
        fuzzers = [Fuzzer(openapi, schemas, seed + number) for number in range(attackers)]
        await asyncio.gather(*(attack(http, fuzzer, requests // attackers, tally) for fuzzer in fuzzers))
        done.set()
        await asyncio.gather(*asking)
        if (await http.get("/health")).status_code != 200:
            tally.wrong.append("/health")
    return tally


def schemas_of(suite: Path) -> list[Any]:
    """All schemas of the suite's tests, which are lists of {"schema": …, "tests": …}."""
    schemas: list[Any] = []
    with tarfile.open(suite) as archive:
        for member in archive:
            if (
                "/json/tests/draft" in member.name
                and member.name.endswith(".json")
                and (file := archive.extractfile(member))
            ):
                schemas += [case["schema"] for case in json.load(file) if isinstance(case["schema"], dict)]
    return schemas


def main(requests: int = 5000, clients: int = 64, schemas: Path | None = None, seed: int = 0) -> None:
    tried = schemas_of(schemas) if schemas else []
    with tempfile.TemporaryDirectory() as name, served(make_model(Path(name), longest=2048)) as server:
        before = server.resident()
        fuzzed = fuzz(server.url, requests, clients, tried, seed)
        tally = asyncio.run(fuzzed)
        print(f"memory           {before / 2**20:.0f} MiB before, {server.resident() / 2**20:.0f} after")
    print(f"schemas          {len(tried) + len(SCHEMAS)}")
    print("statuses        ", *(f"{status}: {number}" for status, number in sorted(tally.statuses.items())))
    for kind, seconds in (("alone", tally.quiet), ("meanwhile", tally.under_fire)):
        cuts = statistics.quantiles(seconds, n=100)
        print(f"honest {kind:9} {len(seconds)} answers, {cuts[49]:.2f} s in the median, {cuts[98]:.2f} s at 99%")
    print(f"wrong            {len(tally.wrong)}", *tally.wrong[:20], sep="\n  ")
    raise SystemExit(bool(tally.wrong))
