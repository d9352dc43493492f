"""How fast are many answers at once? Output tokens a second of npukit's engine, with its peers beside it.

The weights are new (speed does not depend on them), prompts are random and every answer has a given length, so that
all ways do the same work, greedily. On a GPU with the shapes of Qwen2 and Qwen3-30B-A3B; `--shape small` runs anywhere,
and so does `--shape hybrid`, a small Qwen3.5 with linear attention in three of four layers.

    python -m benchmarks serve --shape 7b --requests 64 256 --peers one-by-one static compiled continuous
    python -m benchmarks serve --shape 7b --requests 64 256 --vllm pip
    python -m benchmarks serve --shape small --requests 16 --peers one-by-one static continuous
    python -m benchmarks serve --shape hybrid --requests 16 --peers own-cache static
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch
from benchmarks.speed.peers import vllm_peer
from transformers import AutoConfig, AutoModelForCausalLM

from npukit.facts.models import known_model
from npukit.inference.engine import Engine, EngineOptions, Output, Request, SamplingParams

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "model_type": "qwen2",
        "vocab_size": 8000,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "1.5b": known_model("Qwen2-1.5B") or {},
    "7b": known_model("Qwen2-7B") or {},
    "hybrid": {
        "model_type": "qwen3_5_text",
        "vocab_size": 8000,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "tie_word_embeddings": True,
    },
    "30b-a3b": {**(known_model("Qwen3-30B-A3B") or {}), "norm_topk_prob": True},
}
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLING: dict[str, dict[str, Any]] = {
    "temperature 0.8": {"temperature": 0.8},
    "temperature 0.8, top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "temperature 0.7, top_p 0.8, top_k 20": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
}
ROUNDS = 3  # so many requests each client sends, on average
BANDWIDTH = 4.3e12  # bytes a second that one H200 copies, as measured
Lengths = tuple[int, int]  # of a prompt and of an answer, on average
Work = list[tuple[tuple[int, ...], int]]  # prompts, and how long each answer is to be


def main(
    shape: Annotated[str, SHAPES] = "small",
    requests: tuple[int, ...] = (64,),
    peers: Annotated[tuple[str, ...], PEERS] = (),
    vllm: Annotated[str, "vLLM beside it: a folder with its packages, or `pip`"] = "",
    prompt: Annotated[int, "mean length of a prompt"] = 256,
    answer: Annotated[int, "mean length of an answer"] = 256,
    quantization: Annotated[Literal["w8a8"] | None, "linear layers of npukit's engine in 8 bits"] = None,
    kv_cache_dtype: Annotated[Literal["auto", "int8", "fp8"], "npukit's key/value cache"] = "auto",
    load: Annotated[bool, "time to first token at half of the capacity, too"] = False,
    sample: Annotated[bool, "also with tokens that are drawn"] = False,
) -> None:
    """Run the engine and the peers, and print a table."""
    lengths = prompt, answer
    theirs = run_vllm(vllm, shape, requests, lengths, sample) if vllm else {}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(shape, device)
    words = model.config.vocab_size
    print(f"{shape} shape, {model.dtype}, {device}, torch {torch.__version__}", flush=True)
    works = {count: make_work(count * ROUNDS, lengths, words) for count in requests}
    few = min(works)
    by_peer = {name: measured(PEERS[name], model, works[few][:few]) for name in peers}
    sizes: dict[str, Any] = {"max_num_seqs": max(works), "gpu_memory_utilization": 0.85}
    sizes["max_model_len"] = max(2048, 2 * (prompt + answer))
    engine = Engine(model, EngineOptions(**sizes, quantization=quantization, kv_cache_dtype=kv_cache_dtype))
    print(f"  {model.get_memory_footprint() / 2**30:.1f} GiB of weights", flush=True)
    start = time.perf_counter()
    engine.warm_up()
    print(f"  warmed up in {time.perf_counter() - start:.0f} s", flush=True)
    for count, work in works.items():
        run_engine(engine, make_work(count + 1, lengths, words), count)  # other prompts: none is in the cache later
        ours = measured(lambda _, each, count=count: run_engine(engine, each, count), model, work)  # type: ignore[misc]
        share = (
            f", {ours * step_bound(model, work[:count]) / count:.0%} of the bandwidth bound"
            if device.type == "cuda"
            else ""
        )
        print(f"npukit, {count} clients at once: {ours:,.0f} tokens/s{share}", flush=True)
        if count in theirs:
            print(f"  {ours / theirs[count]:.2f} times vLLM ({theirs[count]:,.0f})", flush=True)
        for name, rate in by_peer.items():
            print(f"  {ours / rate:.1f} times {name} ({rate:,.0f}, {few} requests)", flush=True)
        if load:
            others = make_work(count * 2 + 1, lengths, words)
            print(f"  time to first token, 99th percentile, at half of that: {first_token(engine, others, ours):.3f} s")
        if sample and count == few:
            for number, (name, settings) in enumerate(SAMPLING.items(), start=1):
                others = make_work(count * ROUNDS + number, lengths, words)
                run = functools.partial(run_engine, at_once=count, settings=settings)
                print(f"  {name}:", flush=True)
                run(engine, make_work(count + number + 1, lengths, words))  # kernels are compiled at their first use
                rate = measured(lambda _, each, run=run: run(engine, each), model, others)  # type: ignore[misc]
                print(f"  {rate / ours:.2f} of greedy", flush=True)


def run_vllm(folder: str, shape: str, clients: tuple[int, ...], lengths: Lengths, sample: bool) -> dict[int, float]:
    """Output tokens a second of vLLM's engine by the number of clients; the same work, after as much warming up."""
    config = make_config(shape)
    runs = []
    for count in clients:
        for requests in (count + 1, count * ROUNDS):
            work = make_work(requests, lengths, config.vocab_size)
            runs.append({"clients": count, "temperature": 0.0, "work": work})
    if sample:
        work = make_work(min(clients) * ROUNDS + 1, lengths, config.vocab_size)
        runs.append({"clients": min(clients), "temperature": 0.8, "work": work})
    architectures = {"architectures": [AutoModelForCausalLM._model_mapping[type(config)].__name__]}
    rates = vllm_peer.engine_rates(folder, {**config.to_dict(), **architectures}, runs)
    for rate in rates:
        print(f"  {rate}", flush=True)
    return {rate["clients"]: rate["tokens_per_second"] for rate in rates if not rate["temperature"]}


def make_config(shape: str) -> Any:
    """The configuration of a model of that shape."""
    return AutoConfig.for_model(**SHAPES[shape], max_position_embeddings=32768)


def make_model(shape: str, device: torch.device) -> Any:
    """A model of that shape with new weights."""
    config = make_config(shape)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def make_work(count: int, lengths: Lengths, words: int) -> Work:
    """Requests whose lengths vary by half around the mean; the same for the same count, and others for another."""
    draw = random.Random(count)

    def length(mean: int) -> int:
        return draw.randint(mean // 2, mean * 3 // 2)

    return [(tuple(draw.randrange(words) for _ in range(length(lengths[0]))), length(lengths[1])) for _ in range(count)]


def measured(run: Callable[[Any, Work], int], model: Any, work: Work) -> float:
    """Wanted tokens a second."""
    synchronize()
    start = time.perf_counter()
    tokens = run(model, work)
    synchronize()
    rate = tokens / (time.perf_counter() - start)
    print(f"  {tokens} tokens, {rate:,.0f} tokens/s", flush=True)
    return rate


def run_engine(engine: Engine, work: Work, at_once: int, settings: dict[str, Any] = GREEDY) -> int:
    """So many clients, each of which sends its next request when it has its answer; what the last ones leave empty at
    the end counts in the whole figure, and the rate while all clients were busy is printed beside it.
    """
    requests = [Request(prompt, SamplingParams(**settings, max_tokens=length)) for prompt, length in work]
    tokens = running = ended = 0
    busy: list[tuple[float, int]] = []  # when the first answer ended, and when the last request was sent
    while requests or not engine.is_idle:
        while requests and running < at_once:
            engine.add_request(requests.pop())
            running += 1
            if ended and (not requests or not busy):
                busy.append((time.perf_counter(), tokens))
        for output in engine.step():
            tokens += output.token is not None
            ended += output.finish_reason is not None
            running -= output.finish_reason is not None
    if len(busy) > 1:
        (start, before), (stop, after) = busy[0], busy[-1]
        print(f"  {(after - before) / (stop - start):,.0f} tokens/s while all {at_once} clients were busy", flush=True)
    return tokens


def first_token(engine: Engine, work: Work, rate: float) -> float:
    """The 99th percentile of the time to the first token where requests come at half of what the engine can do."""
    mean = sum(length for _, length in work) / len(work)
    gap = mean / (rate / 2)
    sent: dict[int, float] = {}
    waited: list[float] = []
    start = time.perf_counter()
    left = list(work)
    while left or not engine.is_idle:
        now = time.perf_counter() - start
        while left and now >= gap * len(sent):
            prompt, length = left.pop()
            request = Request(prompt, SamplingParams(temperature=0, max_tokens=length))
            sent[engine.add_request(request)] = time.perf_counter()
        outputs: list[Output] = [] if engine.is_idle else engine.step()
        for output in outputs:
            if output.request_id in sent and output.token is not None:
                waited.append(time.perf_counter() - sent[output.request_id])
                sent[output.request_id] = float("inf")
    firsts = sorted(seconds for seconds in waited if seconds >= 0)
    return firsts[int(len(firsts) * 0.99) - 1]


def step_bound(model: Any, work: Work) -> float:
    """Seconds that reading the weights and the cache takes in one step of the whole batch."""
    config = model.config
    weights = sum(weight.numel() for weight in model.parameters()) * 2
    if not config.tie_word_embeddings:
        weights -= model.get_input_embeddings().weight.numel() * 2
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.hidden_size
    cache = sum(len(prompt) + length / 2 for prompt, length in work) * token / config.num_attention_heads * 2
    return float((weights + cache) / BANDWIDTH)


def one_by_one(model: Any, work: Work) -> int:
    """`generate` for the first few requests, one after the other, with short answers: it is slow."""
    tokens = 0
    for prompt, length in work[:2]:
        wanted = min(length, 64)
        generate(model, [prompt], wanted)
        tokens += wanted
    return tokens


def own_cache(model: Any, work: Work) -> int:
    """npukit's engine with a cache of transformers for each sequence, as for models that it cannot page."""
    longest = max(len(prompt) + length for prompt, length in work)
    engine = Engine(model, EngineOptions(paged=False, max_num_seqs=len(work), max_model_len=longest))
    return run_engine(engine, list(work), len(work))


def static(model: Any, work: Work) -> int:
    """`generate` for all, filled up to the longest; only wanted tokens count."""
    generate(model, [prompt for prompt, _ in work], max(length for _, length in work))
    return sum(length for _, length in work)


def compiled(model: Any, work: Work) -> int:
    """The same with a static cache and transformers' own compilation, which is warmed up before."""
    prompts, longest = [prompt for prompt, _ in work], max(length for _, length in work)
    generate(model, prompts, longest, cache_implementation="static")
    synchronize()
    start = time.perf_counter()
    generate(model, prompts, longest, cache_implementation="static")
    synchronize()
    print(f"  compiled: {len(work) * longest / (time.perf_counter() - start):,.0f} raw tokens/s without the warm-up")
    return sum(length for _, length in work)


def continuous(model: Any, work: Work) -> int:
    """transformers' continuous batching, for the mean answer length."""
    from transformers import GenerationConfig

    mean = sum(length for _, length in work) // len(work)
    settings = GenerationConfig(do_sample=False, max_new_tokens=mean, eos_token_id=-1, pad_token_id=0)
    answers = model.generate_batch(inputs=[list(prompt) for prompt, _ in work], generation_config=settings)
    return sum(len(answer.generated_tokens) for answer in answers.values())


def generate(model: Any, prompts: list[tuple[int, ...]], length: int, **options: Any) -> None:
    """Greedy, to the full length."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    with torch.no_grad():
        model.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
            pad_token_id=0,
            **options,
        )


def synchronize() -> None:
    """Wait for the device."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


PEERS: dict[str, Callable[[Any, Work], int]] = {
    "one-by-one": one_by_one,
    "own-cache": own_cache,
    "static": static,
    "compiled": compiled,
    "continuous": continuous,
}
