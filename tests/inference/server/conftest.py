"""Servers as processes, started as a user does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from npukit.inference.engine.request import Output, Request, Stats, Token


@dataclass
class Server:
    """A server that runs, and what it said."""

    pid: int
    wait: Callable[[], int | None]  # until it has ended, for its exit code
    url: str
    lines: list[str]

    def stop(self) -> int | None:
        """Ask it to end, and wait until it has."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()


Start = Callable[..., Server]


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """`start(model, "--port", ...)` runs `npukit serve` until it listens, on a free port."""
    servers = []

    def started(model: Path, *options: str) -> Server:
        command = [sys.executable, "-m", "npukit", "serve", str(model), "--port", "0", "--device", "cpu", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        servers.append(process)
        assert process.stderr
        return _listening(process.pid, process.wait, process.stderr)

    yield started
    for process in servers:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The same with a copy of a process that has imported torch already; a server that ends at once has no address."""
    servers = []
    forks = get_context("forkserver")
    forks.set_forkserver_preload(["torch", "transformers", "npukit.inference.engine", "npukit.inference.server.app"])

    def forked(model: Path, *options: str) -> Server:
        stderr = tmp_path_factory.mktemp("server") / "stderr"
        os.mkfifo(stderr)
        words = ["npukit", "serve", str(model), "--port", "0", "--device", "cpu", *options]
        process = forks.Process(target=_become_server, args=(str(stderr), words))
        process.start()
        servers.append(process)

        def wait() -> int | None:
            process.join()
            return process.exitcode

        return _listening(process.pid or 0, wait, stderr.open())

    yield forked
    for process in servers:
        process.kill()
        process.join()


def _become_server(stderr: str, words: list[str]) -> None:
    import torch

    import npukit.launch.run
    from npukit.cli import main
    from npukit.launch import script

    def run(command: list[str], environment: dict[str, str], **_: object) -> None:
        os.environ.update(environment)
        sys.argv = ["script", *command]
        script.main()

    os.dup2(os.open(stderr, os.O_WRONLY), 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
    torch.set_num_threads(1)
    npukit.launch.run.run = run  # type: ignore[assignment]
    sys.argv = words
    main()


def _listening(pid: int, wait: Callable[[], int | None], stderr: Iterable[str]) -> Server:
    """The server, once it has said where it listens, or has ended."""
    lines: list[str] = []
    for line in stderr:
        lines.append(line)
        if match := re.search(r" at (http://\S+)", line):
            threading.Thread(target=lines.extend, args=(stderr,), daemon=True).start()
            return Server(pid, wait, match[1], lines)
    return Server(pid, wait, "", lines)


# ChatML with tools and reasoning, as Qwen's models know them.
TEMPLATE = """{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content.split('</think>')[-1] }}{% for call in message.tool_calls or [] %}<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a chat template."""
    file = tmp_path_factory.mktemp("template") / "chat.jinja"
    file.write_text(TEMPLATE)
    return file


@pytest.fixture(scope="session")
def server(fork: Start, tiny_qwen2: Path, template: Path) -> Server:
    """A tiny model with random weights and a template that knows tools."""
    return fork(
        tiny_qwen2, "--served-model-name", "tiny", "--served-model-name", "other", "--chat-template", str(template)
    )


@pytest.fixture(scope="session")
def client(server: Server) -> Any:
    """The official client of OpenAI."""
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=300)


class Scripted:
    """An engine that says what `reply(prompt, number of the request)` wants, one token at a time."""

    def __init__(self, tokenizer: Any, reply: Callable[[str, int], str]) -> None:
        self._tokenizer, self._reply = tokenizer, reply
        self._left: dict[int, list[int]] = {}
        self.asked: list[str] = []

    @property
    def is_idle(self) -> bool:
        return not self._left

    def add_request(self, request: Request) -> int:
        self.asked.append(self._tokenizer.decode(request.prompt))
        answer = self._reply(self.asked[-1], len(self.asked))
        self._left[len(self.asked)] = [*self._tokenizer.encode(answer), self._tokenizer.eos_token_id]
        return len(self.asked)

    def abort_request(self, request_id: int) -> None:
        self._left.pop(request_id, None)

    def stats(self) -> Stats:
        return Stats(0, 0, 1, 0, 0, 0, 0, 0, 0, 0)

    def step(self) -> list[Output]:
        time.sleep(0.005)
        outputs = [Output(n, Token(left.pop(0)), None if left else "stop") for n, left in self._left.items()]
        self._left = {number: left for number, left in self._left.items() if left}
        return outputs


@pytest.fixture(scope="session")
def scripted(tiny_tokenizer: Any) -> Iterator[Any]:
    """`scripted.serve(scripted.engine(reply), template)`: a whole server, whose model says what the test wants."""
    import uvicorn

    from npukit.inference.server.app import make_app
    from npukit.inference.server.protocol import LimitedProtocol
    from npukit.inference.server.serving import Serving
    from npukit.inference.service import Service
    from npukit.llm.chat.chat import Chat
    from npukit.llm.chat.templates import find_template
    from npukit.llm.config.use import ServeOptions
    from npukit.web.server import listen

    running = []

    def serve(engine: Any, template: Path | None = None) -> str:
        options = ServeOptions(port=0, served_model_name=("first", "second"))
        chat = Chat(tiny_tokenizer, find_template(str(template) if template else None, tiny_tokenizer))
        app = make_app(Serving(options, Service(engine), chat, 4096, len(tiny_tokenizer)))
        listener = listen(options.host, options.port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", http=LimitedProtocol))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        running.append((server, thread))
        while not server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield SimpleNamespace(engine=lambda reply: Scripted(tiny_tokenizer, reply), serve=serve)
    for server, thread in running:
        server.should_exit = True
        thread.join(10)
