"""How much of the engine's speed is left behind HTTP? Output tokens a second of `npukit serve`, counted by its clients.

    python -m benchmarks serve_http --shape 1.5b --clients 64 --device cuda
    python -m benchmarks serve_http --shape 1.5b --clients 64 --device cuda --vllm pip --bench
    python -m benchmarks serve_http --shape small --clients 16 --device cpu

The work is that of `serve`: a model of that shape with random weights, random prompts, answers of a given length,
greedy. The server is a process of its own. Clients stream from four processes, and each sends its next request when it
has its answer. `--vllm` asks vLLM's server the same; `--bench` lets vLLM's own load generator ask both, with requests
that arrive at random times, at half and at 90% of what npukit reached before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import torch
from benchmarks.speed.peers import vllm_peer
from benchmarks.speed.serve import ROUNDS, SHAPES, Lengths, Work, make_model, make_work
from benchmarks.tiny_server import served

CLIENT_PROCESSES = 4
BENCH_LINES = ("throughput", "TTFT", "TPOT", "ITL", "Failed", "duration")


def save(shape: str, folder: Path) -> Any:
    """The model with a tokenizer that has a word for each of its tokens; its configuration."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = make_model(shape, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    model.save_pretrained(folder)
    words = {f" w{number}": number for number in range(model.config.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=" w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    tokenizer.decoder = decoders.Fuse()
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
    return tokens, firsts


def load_process(url: str, work: Work, clients: int) -> tuple[int, list[float]]:
    """The same, as the whole of a process."""
    return asyncio.run(load(url, work, clients))


def measure(url: str, clients: int, lengths: Lengths, words: int) -> float:
    """Output tokens a second that the clients counted; prints them with the times to the first token."""
    processes = min(CLIENT_PROCESSES, clients)
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for count in (clients + 1, clients * ROUNDS):  # the first ones only warm up
            work = make_work(count, lengths, words)
            shares = [(url, work[part::processes], clients // processes) for part in range(processes)]
            start = time.perf_counter()
            answers = pool.starmap(load_process, shares)
            seconds = time.perf_counter() - start
    tokens = sum(count for count, _ in answers)
    firsts = sorted(first for _, times in answers for first in times)
    wanted = sum(length for _, length in work)
    median, late = firsts[len(firsts) // 2], firsts[-1 - len(firsts) // 100]
    waited = f"time to first token {median:.3f} s, 99th percentile {late:.3f} s"
    print(
        f"  {tokens / seconds:,.0f} tokens/s with {clients} clients ({tokens} of {wanted} tokens); {waited}", flush=True
    )
    return tokens / seconds


def ask_by_vllm(url: str, model: Path, vllm: str, clients: int, mean: Lengths, rate: float) -> None:
    """vLLM's own load generator against this server, with Poisson arrivals; its summary."""
    lengths = ["--random-input-len", str(mean[0]), "--random-output-len", str(mean[1])]
    count = clients * ROUNDS
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--base-url", url, "--model", "m"]
    command += ["--tokenizer", str(model), "--dataset-name", "random", *lengths, "--random-range-ratio", "0.5"]
    command += ["--ignore-eos", "--num-prompts", str(count), "--disable-tqdm", "--percentile-metrics", "ttft,tpot,itl"]
    for share in (0.5, 0.9):
        per_second = share * rate / mean[1]
        environment = vllm_peer.environment(vllm)
        done = subprocess.run(
            [*command, "--request-rate", f"{per_second:.2f}"], env=environment, capture_output=True, text=True
        )
        kept = [line for line in done.stdout.splitlines() if any(word in line for word in BENCH_LINES)]
        lines = "\n    ".join(kept or [done.stderr[-2000:]])
        print(f"  vllm bench serve at {share:.0%} ({per_second:.1f} requests/s):\n    {lines}", flush=True)


def main(
    shape: Annotated[str, SHAPES] = "small",
    clients: int = 16,
    device: str = "cpu",
    prompt: Annotated[int, "mean length of a prompt"] = 256,
    answer: Annotated[int, "mean length of an answer"] = 256,
    vllm: Annotated[str, "vLLM beside it: a folder with its packages, or `pip`"] = "",
    bench: Annotated[bool, "vLLM's load generator against each server, too"] = False,
) -> None:
    """Serve, ask, print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = save(shape, folder).vocab_size
        torch.cuda.empty_cache()
        servers: dict[str, contextlib.AbstractContextManager[str]] = {
            "npukit": served_by_npukit(folder, device, clients)
        }
        if vllm:
            servers["vLLM"] = vllm_peer.served_by_vllm(vllm, folder, clients)
        rates: dict[str, float] = {}
        for server, running in servers.items():
            print(f"{server}, Qwen2 {shape} shape on {device}:", flush=True)
            with running as url:
                rates[server] = measure(url, clients, (prompt, answer), words)
                if bench:
                    ask_by_vllm(url, folder, vllm, clients, (prompt, answer), rates["npukit"])
        if "vLLM" in rates:
            print(f"{rates['npukit'] / rates['vLLM']:.2f} times vLLM")


@contextlib.contextmanager
def served_by_npukit(folder: Path, device: str, clients: int) -> Iterator[str]:
    """`npukit serve`, and its address."""
    options = ["--device", device, "--served-model-name", "m", "--max-model-len", "2048", "--no-key"]
    start = time.perf_counter()
    with served(folder, [*options, "--max-num-seqs", str(clients)]) as server:
        print(f"  npukit serve answers after {time.perf_counter() - start:.0f} s", flush=True)
        yield server.url
