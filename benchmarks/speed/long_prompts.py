"""What a long prompt costs those whose answers are being generated, and its cache, beside what plan says.

    python -m benchmarks long_prompts [--prompt 32768] [--clients 16] [--kv-cache-dtype int8] [--penalty 1.05]

A model of two layers, 64 wide, with two key heads for four query heads, so that little but attention and the engine's
own work takes time. Clients have begun to get their answers when the prompt arrives. On one thread of the CPU, in
fp32 and CPU seconds; memory is the process's.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from npukit.inference.engine import Engine, EngineOptions, Request, SamplingParams
from npukit.inference.engine.cache import attention_modules
from npukit.llm.config.use import Use
from npukit.performance.plan.serving import plan_serving
from npukit.selftest.models import SHAPE

ANSWER = 20  # tokens of the answer to the long prompt


def make_engine(longest: int, clients: int, kv_cache_dtype: str) -> tuple[Engine, int, int]:
    """An engine with a cache for all; the bytes of its cache, and those that plan says."""
    torch.manual_seed(0)
    engine: dict[str, Any] = {"max_num_seqs": clients + 1, "kv_cache_dtype": kv_cache_dtype, "block_size": 16}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(
            json.dumps({"model_type": "qwen2", **SHAPE, "max_position_embeddings": longest})
        )
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
        use = Use.model_validate({"model": {"path": folder, "dtype": "float32"}, "engine": engine})
        planned = plan_serving(use, "910B3").cache
    made = Engine(model, EngineOptions(**engine))
    names = ("key_cache", "value_cache", "key_scales", "value_scales")
    held = [layer.__dict__.get(name) for layer in attention_modules(model) for name in names]
    return made, sum(tensor.nbytes for tensor in held if tensor is not None), planned


def main(
    prompt: Annotated[int, "tokens of the long prompt"] = 32768,
    clients: Annotated[int, "whose short prompts came before"] = 16,
    kv_cache_dtype: str = "auto",
    penalty: Annotated[float, "repetition penalty of the long prompt's answer"] = 1.0,
) -> None:
    """Print the figures of one run."""
    torch.set_num_threads(1)
    engine, held, planned = make_engine(prompt + 1024, clients, kv_cache_dtype)
    print(f"cache       {held / 2**20:.1f} MiB, planned {planned / 2**20:.1f}")
    endless = SamplingParams(temperature=0)
    others = {engine.add_request(Request((1, 2, 3 + number), endless)) for number in range(clients)}
    for _ in range(4):
        engine.step()
    settings = SamplingParams(temperature=0, max_tokens=ANSWER, repetition_penalty=penalty)
    draw = torch.Generator().manual_seed(1)
    long = engine.add_request(Request(tuple(torch.randint(1, 300, (prompt,), generator=draw).tolist()), settings))
    seconds: list[float] = []
    got: list[set[int]] = []
    while sum(long in ids for ids in got) < ANSWER:
        began = time.process_time()
        got.append({output.request_id for output in engine.step()})
        seconds.append(time.process_time() - began)
    first = next(number for number, ids in enumerate(got) if long in ids)
    assert all(others <= ids for ids in got), "an answer did not go on"
    print(f"prompt      {prompt:,} tokens in {first + 1} passes, {sum(seconds[: first + 1]):.1f} s")
    print(f"passes      {1e3 * seconds[0]:.0f} ms at first, {1e3 * max(seconds):.0f} ms at most")
    print(f"answers     {len(others)} others got a token in each pass")
    print(f"decoding    {1e3 * sum(seconds[first + 1 :]) / (ANSWER - 1):.1f} ms a pass with the long one")
    print(f"memory      {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")
