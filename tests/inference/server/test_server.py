"""What an operator relies on: keys, limits, adapters, clients that leave, and an end that loses no answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
KEY = "s3cret"


def ask(server: Any, path: str, body: Any = None, key: str | None = KEY, **headers: str) -> tuple[int, Any, Any]:
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        with urlopen(Request(server.url + path, data, headers), timeout=300) as answer:
            return answer.status, _parsed(answer.read()), answer.headers
    except HTTPError as error:
        return error.code, _parsed(error.read()), error.headers


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()


def said(server: Any, **change: Any) -> str:
    answer = ask(server, "/v1/chat/completions", {**CHAT, **change})[1]
    return str(answer["choices"][0]["message"]["content"])


@pytest.fixture(scope="module")
def adapter(tiny_qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("adapters") / "loud"
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_qwen2), config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def server(fork: Any, tiny_qwen2: Path, adapter: Path) -> Any:
    options = ["--served-model-name", "tiny", "--adapter", f"loud={adapter}", "--api-key", KEY, "--api-key", "other"]
    limits = ["--max-body", "0.1", "--max-waiting", "8", "--cors", "https://page.example", "--allow-adapter-changes"]
    return fork(tiny_qwen2, *options, *limits)


def test_the_key_is_wanted_everywhere_but_for_the_page_and_health(server: Any) -> None:
    for key in (None, "wrong", "s3cre", "s3crett", ""):
        status, body, headers = ask(server, "/v1/chat/completions", CHAT, key)
        assert (status, body["error"]["code"]) == (401, "invalid_api_key") and "Bearer" in headers["WWW-Authenticate"]
    assert [ask(server, path, key=None)[0] for path in ("/v1/models", "/metrics", "/tokenize")] == [401] * 3
    assert [ask(server, path, key=None)[0] for path in ("/", "/page/page.js", "/health", "/version")] == [200] * 4
    assert ask(server, "/v1/models", key="other")[0] == 200


def test_the_page_may_talk_to_nobody_else(server: Any) -> None:
    policy = ask(server, "/", key=None)[2]["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_only_the_named_origin_may_read_answers(server: Any) -> None:
    def allowed(origin: str) -> str | None:
        value: str | None = ask(server, "/v1/models", Origin=origin)[2]["Access-Control-Allow-Origin"]
        return value

    assert allowed("https://page.example") == "https://page.example"
    assert allowed("https://evil.example") is None


BODIES = [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b'{"messages": ' + b"[" * 5000, b"null"]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:12]))
def test_malformed_bodies_are_400(server: Any, body: bytes) -> None:
    status, answer, _ = ask(server, "/v1/chat/completions", body)
    assert status == 400 and set(answer["error"]) == {"message", "type", "param", "code"}


def test_large_bodies_are_refused_before_they_are_read(server: Any) -> None:
    status, answer, _ = ask(server, "/v1/chat/completions", {**CHAT, "user": "x" * 200_000})
    assert (status, answer["error"]["code"]) == (400, "request_too_large")
    with connected(server) as raw:  # a body that does not say how long it is
        raw.sendall(head("/v1/completions", "Transfer-Encoding: chunked") + b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
        raw.sendall(b"186a0\r\n" + b"x" * 100_000 + b"\r\n0\r\n\r\n")
        assert b"400 Bad Request" in raw.recv(65536)


def test_wrong_paths_and_methods(server: Any) -> None:
    assert ask(server, "/v1/nothing")[1]["error"]["type"] == "not_found_error"
    assert ask(server, "/v1/chat/completions")[0] == 405


def test_too_many_are_told_when_to_come_back(server: Any) -> None:
    body = json.dumps({**CHAT, "n": 8, "max_tokens": 3000, "ignore_eos": True}).encode()
    with connected(server) as raw:
        raw.sendall(head("/v1/chat/completions", f"Content-Length: {len(body)}") + body)
        wait_for(server, running=8)
        status, answer, headers = ask(server, "/v1/chat/completions", CHAT)
    assert (status, answer["error"]["type"]) == (429, "rate_limit_error") and int(headers["Retry-After"]) > 0
    wait_for(server, running=0)
    assert ask(server, "/v1/chat/completions", {**CHAT, "n": 9})[0] == 400  # which can never have room


def test_adapters_are_models_that_come_and_go(server: Any, adapter: Path) -> None:
    assert [model["id"] for model in ask(server, "/v1/models")[1]["data"]] == ["tiny", "loud"]
    assert said(server, model="loud") != said(server, model="tiny")
    load = {"lora_name": "second", "lora_path": str(adapter)}
    assert ask(server, "/v1/load_lora_adapter", load)[0] == 200
    assert ask(server, "/v1/load_lora_adapter", load)[0] == 400
    assert said(server, model="second") == said(server, model="loud")
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "second"})[0] == 200
    assert ask(server, "/v1/chat/completions", {**CHAT, "model": "second"})[0] == 404
    assert ask(server, "/v1/load_lora_adapter", {"lora_name": "third", "lora_path": "/nowhere"})[0] == 400
    assert ask(server, "/v1/chat/completions", {**CHAT, "model": "third"})[0] == 404


def test_a_replacement_that_cannot_be_loaded_leaves_the_adapter_as_it_was(server: Any, adapter: Path) -> None:
    before = said(server, model="loud")
    for path in ("/nowhere", "\0", str(adapter / "adapter_config.json")):
        load = {"lora_name": "loud", "lora_path": path, "load_inplace": True}
        assert ask(server, "/v1/load_lora_adapter", load)[0] == 400
    assert said(server, model="loud") == before
    load = {"lora_name": "loud", "lora_path": str(adapter), "load_inplace": True}
    assert ask(server, "/v1/load_lora_adapter", load)[0] == 200
    assert said(server, model="loud") == before


def test_tokens_there_and_back(server: Any) -> None:
    made = ask(server, "/tokenize", {"prompt": "Größe 🙂"})[1]
    assert made["count"] == len(made["tokens"])
    assert ask(server, "/detokenize", {"tokens": made["tokens"]})[1] == {"prompt": "Größe 🙂"}
    chat = ask(server, "/tokenize", {"messages": CHAT["messages"]})[1]
    assert ask(server, "/v1/chat/completions", CHAT)[1]["usage"]["prompt_tokens"] == chat["count"]


def test_who_leaves_frees_the_place(server: Any) -> None:
    for stream in (True, False):
        with connected(server) as raw:
            body = json.dumps({**CHAT, "max_tokens": 4000, "stream": stream, "ignore_eos": True}).encode()
            raw.sendall(head("/v1/chat/completions", f"Content-Length: {len(body)}") + body)
            wait_for(server, running=1)
        wait_for(server, running=0)


def test_figures_for_prometheus(server: Any) -> None:
    before = figure(server, "vllm:generation_tokens_total")
    made = ask(server, "/v1/chat/completions", {**CHAT, "ignore_eos": True})[1]["usage"]["completion_tokens"]
    assert (made, figure(server, "vllm:generation_tokens_total") - before) == (5, 5)
    text = ask(server, "/metrics")[1]
    assert 'vllm:time_to_first_token_seconds_count{model_name="tiny"}' in text
    assert 'vllm:request_success_total{finished_reason="length",model_name="tiny"}' in text


def test_what_is_said_is_not_logged(server: Any) -> None:
    said(server, messages=[{"role": "user", "content": "a very secret question"}])
    ask(server, "/v1/chat/completions", b"a very secret question")
    assert "secret" not in "".join(server.lines)


def test_fields_that_are_not_known_are_named_once(server: Any) -> None:
    for _ in range(2):
        assert ask(server, "/v1/chat/completions", {**CHAT, "temprature": 0, "a\x1b[2Jb": 1})[0] == 200
    said(server, tools=None, guided_json=None)  # which asks for nothing
    while not any("temprature" in line for line in server.lines):
        time.sleep(0.02)
    log = "".join(server.lines)
    assert (log.count("temprature"), log.count("guided"), log.count("\x1b")) == (1, 1, 0)


@pytest.fixture(scope="module")
def open_server(fork: Any, tiny_qwen2: Path) -> Any:
    return fork(tiny_qwen2, "--timeout", "2")


def test_pages_of_others_cannot_reach_a_server_without_a_key(open_server: Any) -> None:
    plain = json.dumps(CHAT).encode()
    assert ask(open_server, "/v1/models", key=None, Host="evil.example")[0] == 403
    assert ask(open_server, "/v1/chat/completions", plain, None, **{"Content-Type": "text/plain"})[0] == 415
    assert ask(open_server, "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "b"}, None)[0] == 404


def test_what_the_server_does_not_serve_is_refused_with_what_it_does(open_server: Any) -> None:
    status, body, _ = ask(open_server, "/v1/embeddings", {"model": "tiny", "input": "Hi"}, None)
    assert (status, body["error"]["type"]) == (404, "not_found_error")
    assert "/v1/embeddings" in body["error"]["message"] and "/v1/chat/completions" in body["error"]["message"]


def test_an_answer_that_takes_too_long_is_cut(open_server: Any) -> None:
    cut = ask(open_server, "/v1/completions", {"prompt": "Hi", "max_tokens": 4000, "ignore_eos": True}, None)[1]
    assert cut["choices"][0]["finish_reason"] == "length" and 0 < cut["usage"]["completion_tokens"] < 4000


def test_a_signal_lets_answers_end(open_server: Any) -> None:
    body = json.dumps({**CHAT, "max_tokens": 300, "ignore_eos": True, "stream": True}).encode()
    url = open_server.url + "/v1/chat/completions"
    with urlopen(Request(url, body, {"Content-Type": "application/json"}), timeout=300) as answer:
        answer.readline()
        stopping = threading.Thread(target=open_server.stop)
        stopping.start()
        rest = answer.read().decode()
    stopping.join(30)
    assert '"finish_reason":"length"' in rest and rest.endswith("data: [DONE]\n\n")
    assert not stopping.is_alive()
    with pytest.raises(OSError):
        urlopen(open_server.url + "/health", timeout=5)


@pytest.mark.parametrize(
    "options",
    [
        ["--host", "0.0.0.0"],
        ["--dtype", "int3"],
        ["--adapter", "a=b", "--adapter", "a=c"],
        ["--tensor-parallel-size", "2"],
        ["--unknown", "1"],
        ["--engine", "vllm"],
        ["--port", "99999"],
    ],
)
def test_what_cannot_be_served_is_one_sentence(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from npukit.cli import main

    monkeypatch.setattr(sys, "argv", ["npukit", "serve", "model", "--device", "cpu", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and capsys.readouterr().err.startswith("npukit: ")


def test_an_adapter_that_is_not_there(fork: Any, tiny_qwen2: Path) -> None:
    ended = fork(tiny_qwen2, "--adapter", "x=/nowhere")
    output = "".join(ended.lines)
    assert ended.wait() == 2 and "Traceback" not in output and "/nowhere" in output


def test_vllm_gets_the_same_options() -> None:
    options = ["--engine", "vllm", "--python", "/opt/vllm/bin/python", "--device", "npu", "--dry-run"]
    more = [
        "--served-model-name",
        "qwen",
        "--adapter",
        "a=/b",
        "--tensor-parallel-size",
        "4",
        "--api-key",
        KEY,
        "--max-model-len",
        "99",
    ]
    command = [sys.executable, "-m", "npukit", "serve", "m", *options, *more, "--quantization", "ascend"]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert words[words.index("serve") - 1 : words.index("serve") + 4] == [
        "/opt/vllm/bin/vllm", "serve", "m", "--served-model-name", "qwen",
    ]  # fmt: skip
    for pair in ("--tensor-parallel-size 4", "--max-model-len 99", "--lora-modules a=/b", "--quantization ascend"):
        assert pair in " ".join(words)
    assert "TASK_QUEUE_ENABLE=1" in words and KEY not in " ".join(words)


def connected(server: Any) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((str(address.hostname), int(address.port or 0)), timeout=300)


def head(path: str, *more: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Authorization: Bearer {KEY}",
        *more,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def figure(server: Any, name: str) -> float:
    lines = ask(server, "/metrics")[1].splitlines()
    return float(next(line for line in lines if line.startswith(name + "{")).split()[-1])


def wait_for(server: Any, running: int) -> None:
    while figure(server, "vllm:num_requests_running") != running:
        time.sleep(0.02)


def test_a_server_whose_engine_was_killed_ends_with_a_sentence(fork: Any, tiny_qwen2: Path) -> None:
    server = fork(tiny_qwen2)
    engine = _children(server.pid)[-1]
    os.kill(engine, signal.SIGKILL)
    assert server.wait() == 1
    assert "engine" in server.lines[-1] and "Traceback" not in "".join(server.lines)


def _children(pid: int) -> list[int]:
    """All processes below a process, the youngest generation last."""
    own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return own + [grandchild for child in own for grandchild in _children(child)]
