"""What one client sends, however bad, is a 4xx for that client, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.inference.server.test_server import ask

from npukit.errors import NpukitError
from npukit.inference.engine import Engine, EngineOptions
from npukit.inference.engine.request import Output, Token
from npukit.inference.server import protocol
from npukit.inference.server.lanes import LARGE, Lanes
from npukit.inference.server.start import serve
from npukit.inference.start import UseJob, handed_over
from npukit.llm.config.use import ServeOptions, Use
from npukit.web.server import listen

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


@pytest.fixture(scope="module")
def server(scripted: Any, tiny_qwen2: Path, template: Path) -> Any:
    """A server with a real engine, in this process."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_qwen2)
    return SimpleNamespace(url=scripted.serve(Engine(model, EngineOptions(max_num_seqs=8)), template))


def test_every_number_of_every_request_has_two_bounds() -> None:
    import npukit.inference.server.embeddings
    import npukit.inference.server.responses  # noqa: F401 - they define requests
    from npukit.inference.server.schema import Lenient

    def kinds(model: Any) -> list[Any]:
        return [model, *(model_ for kind in model.__subclasses__() for model_ in kinds(kind))]

    def unbounded(schema: Any, where: str) -> list[str]:
        if isinstance(schema, list):
            return [field for part in schema for field in unbounded(part, where)]
        if not isinstance(schema, dict):
            return []
        fields = [field for key, part in schema.items() for field in unbounded(part, f"{where}.{key}")]
        limits = {"minimum", "exclusiveMinimum"} & set(schema), {"maximum", "exclusiveMaximum"} & set(schema)
        return fields + [where] * (schema.get("type") in ("integer", "number") and not all(limits))

    models = kinds(Lenient)
    assert len(models) > 10
    assert [field for model in models for field in unbounded(model.model_json_schema(), model.__name__)] == []


DEEP = '{"properties": {"a": ' * 900 + "{}" + "}}" * 900


def schema(value: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def structured(**fields: Any) -> dict[str, Any]:
    return {"structured_outputs": fields}


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    return {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
        "tool_choice": "required",
        **more,
    }


CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": "\\ud800"}'}}]}
BAD: list[tuple[str, Any]] = [
    *((CHAT, {**HI, name: 2**63}) for name in ("top_k", "max_tokens", "min_tokens", "seed", "n", "top_logprobs")),
    *((CHAT, {**HI, name: 1e308}) for name in ("temperature", "top_p", "min_p", "repetition_penalty")),
    (CHAT, {**HI, "repetition_penalty": 1e-300}),
    (CHAT, {**HI, "top_k": 10**400}),
    (CHAT, {**HI, "logit_bias": {str(2**63): 1}}),
    (CHAT, {**HI, "logit_bias": dict.fromkeys(map(str, range(5000)), "x")}),
    (COMPLETIONS, {"prompt": [2**63]}),
    (COMPLETIONS, {"prompt": "Hi", "logprobs": 2**31 - 1}),
    (RESPONSES, {"input": "Hi", "max_output_tokens": 2**64}),
    ("/detokenize", {"tokens": [2**40]}),
    *((CHAT, b'{"messages": [{"role": "user", "content": "%s"}]}' % bad) for bad in (b"\\ud800", b"x\\udfffy")),
    (COMPLETIONS, b'{"prompt": "\\udc00"}'),
    (RESPONSES, b'{"input": "\\udc00"}'),
    ("/tokenize", b'{"prompt": "\\udc00"}'),
    (CHAT, b'{"\\ud800": 1, "messages": [{"role": "user", "content": "Hi"}]}'),
    (CHAT, {**HI, "messages": [CALL]}),
    (CHAT, {**HI, "messages": [{"role": "assistant", "tool_calls": 5}]}),
    (CHAT, json.dumps({**HI, **schema({"const": float("nan")})}).encode()),
    (CHAT, json.dumps({**HI, **schema({"const": 0})}).replace('"const": 0', '"const": 1e999').encode()),
    (RESPONSES, b'{"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": {"a": 1e999}}]}'),
    (CHAT, json.dumps({**HI, **schema("deep")}).replace('"deep"', DEEP).encode()),
    (CHAT, json.dumps({"messages": ["deep"]}).replace('"deep"', DEEP).encode()),
    (CHAT, {**HI, **structured(json="[" * 100_000)}),
    (CHAT, {**HI, **structured(json='{"const": NaN}')}),
    (CHAT, {**HI, **schema({"$ref": "#"})}),
    (CHAT, {**HI, **schema({"type": "nothing"})}),
    (CHAT, {**HI, **tool({"$ref": "#"})}),
    (CHAT, {**HI, **tool({"type": "x"})}),
    (CHAT, {**HI, **tool({"properties": "x"})}),
    (CHAT, {**HI, **structured(regex="(?:a?){5000}a{5000}"), "max_tokens": 100}),  # fails after a few tokens
    (CHAT, {**HI, "chat_template_kwargs": {"return_assistant_tokens_mask": True}}),
    (CHAT, {**HI, "messages": [{"role": "user", "content": "x" * 6_000_000}]}),
    (COMPLETIONS, {"prompt": "x" * 6_000_000}),
    (COMPLETIONS, {"prompt": ["Hi"] * 600}),  # more than ever have room: coming back later does not help
    (COMPLETIONS, {"prompt": [None] * 1_000_000}),
]


@pytest.mark.parametrize(("path", "body"), BAD, ids=range(len(BAD)))
def test_bad_input_is_a_400(server: Any, path: str, body: Any) -> None:
    status, answer, _ = ask(server, path, body, None)
    assert status == 400 and answer["error"]["message"] and answer["error"]["type"] == "invalid_request_error"
    assert ask(server, CHAT, HI, None)[0] == 200


def test_a_grammar_that_fails_in_a_stream_is_an_event(server: Any) -> None:
    body = {**HI, **structured(regex="(?:a?){5000}a{5000}"), "max_tokens": 100, "stream": True}
    events = ask(server, CHAT, body, None)[1].split("\n\n")
    assert "error" in json.loads(events[-2].removeprefix("data: ")) and '"finish_reason":"stop"' not in "".join(events)


@pytest.mark.parametrize("count", [3, 2000, 50_000])
def test_choices_of_any_number(server: Any, count: int) -> None:
    choices = [f"value {number}" for number in range(count)]
    answer = ask(server, CHAT, {**HI, **structured(choice=choices), "max_tokens": 50, "ignore_eos": True}, None)[1]
    assert answer["choices"][0]["message"]["content"] in choices and answer["choices"][0]["finish_reason"] == "stop"


def test_a_length_that_the_grammar_does_not_allow(server: Any) -> None:
    answer = ask(server, CHAT, {**HI, **structured(choice=["a"]), "min_tokens": 4}, None)[1]["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == ("a", "stop")


def test_a_tiny_temperature_is_greedy(server: Any) -> None:
    choices = [ask(server, CHAT, {**HI, "temperature": value}, None)[1]["choices"][0] for value in (0, 1e-40, 1e-7)]
    assert choices[0]["message"] == choices[1]["message"] == choices[2]["message"]


def test_the_parameter_that_is_wrong_is_named(server: Any) -> None:
    for name, value in (("stop_token_ids", [10**6]), ("logit_bias", {"1000000": 1}), ("top_k", 2**40)):
        assert ask(server, CHAT, {**HI, name: value}, None)[1]["error"]["param"] == name


def test_line_separators_are_escaped_in_events(scripted: Any, template: Path) -> None:
    url = scripted.serve(scripted.engine(lambda *_: "a\u2028b\u2029c\x85d"), template)
    text = ask(SimpleNamespace(url=url), CHAT, {**HI, "max_tokens": 50, "stream": True}, None)[1]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == "a\u2028b\u2029c\x85d"


def test_small_requests_do_not_wait_for_large_ones() -> None:
    async def main() -> None:
        lanes, end = Lanes(), threading.Event()
        large = [asyncio.ensure_future(lanes.run(end.wait, LARGE)) for _ in range(4)]
        assert await lanes.run(lambda: 1, 10) == 1
        end.set()
        await asyncio.gather(*large)

    asyncio.run(main())


def test_packets_are_sent_at_once() -> None:
    async def main() -> int:
        accepted: asyncio.Future[asyncio.BaseTransport] = asyncio.get_running_loop().create_future()

        class Accepting(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted.set_result(transport)

        async with await asyncio.get_running_loop().create_server(
            Accepting, sock=(listener := listen(OPTIONS.host, OPTIONS.port))
        ):
            with socket.create_connection(listener.getsockname()):
                taken = (await accepted).get_extra_info("socket")
                return int(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    assert asyncio.run(main())


OPTIONS = ServeOptions(port=0, served_model_name=("model",))


def connected(server: Any) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=60)


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_headers_have_a_size(server: Any, end: bytes) -> None:
    with connected(server) as raw:
        raw.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (protocol.MAX_HEAD + 10) + end)
        assert raw.recv(100).startswith(b"HTTP/1.1 431 ")


def test_headers_have_a_time(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.2)
    with connected(server) as silent, connected(server) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\nGET /heal")
        assert b" 408 " in silent.recv(100)
        heard = b""
        while data := slow.recv(1000):
            heard += data
        assert b" 200 OK" in heard and b" 408 " in heard


def test_unfinished_headers_have_a_number(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_UNFINISHED", 3)
    waiting = [connected(server) for _ in range(6)]
    assert b" 408 " in waiting[0].recv(100)
    waiting[-1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b" 200 OK" in waiting[-1].recv(100)
    for raw in waiting:
        raw.close()


def test_an_engine_that_dies_ends_the_process(tiny_qwen2: Path) -> None:
    from npukit.inference.server import process

    def serve_badly() -> None:
        def fail(_: Engine) -> list[Output]:
            raise ValueError("planted")

        os.environ |= handed_over(
            UseJob("serve", Use(model={"path": str(tiny_qwen2)}, serve={"port": port}).ready_to_serve())
        )
        Engine.warm_up = lambda _: None  # type: ignore[method-assign, assignment]
        Engine.step = fail  # type: ignore[method-assign, assignment]
        try:
            process.main()
        except NpukitError as error:
            os._exit(error.exit_code if "planted" in str(error) else 99)

    port = free_port()
    child = multiprocessing.get_context("fork").Process(target=serve_badly)
    child.start()
    assert send(port, HI).partition(b"\r\n")[0].endswith(b"500 Internal Server Error")
    child.join(60)
    assert child.exitcode == 1


def test_answers_that_do_not_end_in_time_end_with_an_error(scripted: Any, tiny_tokenizer: Any, tmp_path: Path) -> None:
    from npukit.inference.server.app import make_app
    from npukit.inference.server.serving import Serving
    from npukit.inference.service import Service
    from npukit.llm.chat.chat import Chat
    from npukit.llm.chat.templates import find_template

    class Endless(type(scripted.engine(None))):
        def step(self) -> list[Output]:
            time.sleep(0.01)
            return [Output(number, Token(70)) for number in self._left]

    options = ServeOptions(port=free_port(), drain=1, served_model_name=("model",))

    def run() -> None:
        os.dup2(os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY), 2)
        chat = Chat(tiny_tokenizer, find_template(None, tiny_tokenizer))
        engine = Endless(tiny_tokenizer, lambda *_: "x")
        app = make_app(Serving(options, Service(engine), chat, 4096, len(tiny_tokenizer)))
        serve(app, options, listen(options.host, options.port), lambda _: None)
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    answers: dict[bool, bytes] = {}
    clients = [
        threading.Thread(
            target=lambda stream=stream: answers.update({stream: send(options.port, {**HI, "stream": stream})})
        )
        for stream in (True, False)
    ]
    for client in clients:
        client.start()
    time.sleep(1)
    os.kill(child.pid or 0, signal.SIGTERM)
    for client in clients:
        client.join(30)
    child.join(30)
    assert child.exitcode == 0 and "Traceback" not in (tmp_path / "log").read_text()
    assert b" 503 " in answers[False].partition(b"\r\n")[0] and b'"server_error"' in answers[False]
    assert b" 200 OK" in answers[True].partition(b"\r\n")[0] and b'data: {"error"' in answers[True]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def send(port: int, body: Any) -> bytes:
    """All that a server says to a conversation, as soon as it listens."""
    data = json.dumps(body).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    while True:
        try:
            raw = socket.create_connection(("127.0.0.1", port), timeout=60)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    with raw:
        raw.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        heard = b""
        while part := raw.recv(65536):
            heard += part
    return heard


def test_fuzzed_requests_are_refused_and_disturb_nobody(server: Any) -> None:
    from benchmarks.robustness.serve_fuzz import fuzz

    tally = asyncio.run(fuzz(server.url, requests=60, clients=1, schemas=[], seed=1))
    assert not tally.wrong and tally.statuses[400] > 30
