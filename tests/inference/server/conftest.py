"""Servers as processes, started as a user does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Server:
    """A server that runs, and what it said."""

    process: subprocess.Popen[str]
    url: str
    said: list[str]

    def stop(self) -> int:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


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
        said: list[str] = []
        assert process.stderr
        for line in process.stderr:
            said.append(line)
            if found := re.search(r" at (http://\S+)", line):
                threading.Thread(target=said.extend, args=(process.stderr,), daemon=True).start()
                return Server(process, found[1], said)
        raise AssertionError("".join(said))

    yield started
    for process in servers:
        if process.poll() is None:
            process.kill()
        process.wait()


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
def server(start: Start, tiny_qwen2: Path, template: Path) -> Server:
    """A tiny model with random weights and a template that knows tools."""
    return start(tiny_qwen2, "--name", "tiny", "--name", "other", "--chat-template", str(template))


@pytest.fixture(scope="session")
def client(server: Server) -> Any:
    """The official client of OpenAI."""
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60)
