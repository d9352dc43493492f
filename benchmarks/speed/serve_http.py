"""How much of the engine's speed is left behind HTTP? Output tokens a second of `npukit serve`, counted by its clients.

    python -m benchmarks serve_http --shape 1.5b --clients 64 --device cuda
    python -m benchmarks serve_http --shape small --clients 16 --device cpu

The work is that of serve_gpu: a model of that shape with random weights, random prompts, answers of a given length,
greedy. The server is a process of its own. Clients stream, and each sends its next request when it has its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from benchmarks.speed.serve import ROUNDS, SHAPES, Work, make_model, make_work
from benchmarks.tiny_server import served


def save(shape: str, folder: Path) -> Any:
    """The model with a tokenizer that has a word for each of its tokens; its configuration."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = make_model(shape, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    model.save_pretrained(folder)
    words = {f" w{number}": number for number in range(model.config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=" w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=" w1").save_pretrained(folder)
    return model.config


async def ask(url: str, prompt: tuple[int, ...], length: int) -> tuple[float, int]:
    """Stream one answer; the time to its first event, and its tokens as the server counts them."""
    address = urlsplit(url)
    settings = {"stream": True, "ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True}}
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": length, **settings}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    start, first, last = time.perf_counter(), 0.0, b""
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=2**20)
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    async for line in reader:
        if line.startswith(b"data: {"):
            first, last = first or time.perf_counter() - start, line
    writer.close()
    return first, int(json.loads(last[6:])["usage"]["completion_tokens"])


async def load(url: str, work: Work, clients: int) -> tuple[int, list[float]]:
    """All the work by so many clients; tokens, and times to the first one."""
    left, tokens, firsts = list(work), 0, []

    async def client() -> None:
        nonlocal tokens
        while left:
            first, count = await ask(url, *left.pop())
            tokens += count
            firsts.append(first)

    await asyncio.gather(*(client() for _ in range(clients)))
    return tokens, sorted(firsts)


def main() -> None:
    """Serve, ask, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompt", type=int, default=256, help="mean length of a prompt")
    parser.add_argument("--answer", type=int, default=256, help="mean length of an answer")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = save(arguments.shape, Path(folder))
        options = ["--device", arguments.device, "--served-model-name", "m", "--max-model-len", "2048", "--no-key"]
        with served(Path(folder), [*options, "--max-num-seqs", str(arguments.clients)]) as server:
            for count in (arguments.clients + 1, arguments.clients * ROUNDS):  # the first ones only warm up
                work = make_work(count, arguments, config.vocab_size)
                start = time.perf_counter()
                tokens, firsts = asyncio.run(load(server.url, work, arguments.clients))
                seconds = time.perf_counter() - start
    wanted = sum(length for _, length in work)
    rate = f"{tokens / seconds:,.0f} tokens/s over HTTP with {arguments.clients} clients"
    waited = (
        f"time to first token {firsts[len(firsts) // 2]:.3f} s, 99th percentile {firsts[-1 - len(firsts) // 100]:.3f}"
    )
    print(f"Qwen2 {arguments.shape} shape on {arguments.device}: {rate} ({tokens} of {wanted} tokens); {waited}")


if __name__ == "__main__":
    main()
