"""npukit's training beside that of others on one GPU: real tokens a second, and memory.

    python -m benchmarks train --nanogpt CHECKOUT --peers FOLDER [--only gpt2 gpt2_as_nanogpt lora qlora full long moe]

GPT-2 124M, new weights, 32 rows of 1,024 tokens a step: as transformers configures it, with its dropout; and as nanoGPT
does, with 50,304 words and none. Qwen2-7B's shape with LoRA of rank 8 on all linear layers: rows of log-normal length
(about 400 tokens on average), packed to 4,096 tokens, one or four packs a step, or padded, 16 rows a step; the same
over weights in 4 bits, recomputing; rows of 32,768 tokens. Qwen2-1.5B's shape with all weights trained; that of
Qwen3-30B-A3B with 16 of its 48 layers and LoRA. Padding does not count as a token. Every contestant runs in a process
of its own, bf16, AdamW, on random tokens; the median of its later steps counts. `--peers` brings Unsloth and Liger: a
folder with their packages, or `pip` if they are installed.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from benchmarks.contest import result, results, timed
from benchmarks.speed.peers import train_peers as peers

from npukit.facts.models import known_model

GPT2 = {"model_type": "gpt2"}
GPT2_AS_NANOGPT = {
    **GPT2,
    "vocab_size": 50304,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
QWEN2 = {
    **(known_model("Qwen2-7B") or {}),
    "max_position_embeddings": 32768,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
QWEN2_SMALL = {**QWEN2, **(known_model("Qwen2-1.5B") or {})}
QWEN3_MOE = {
    **(known_model("Qwen3-30B-A3B") or {}),
    "num_hidden_layers": 16,  # a third of them: quicker to make, and a layer's share of the time is the same
    "norm_topk_prob": True,
    "max_position_embeddings": 32768,
}
QWEN2_FLOPS = 4 * 7.07e9  # a token: forward and backward through frozen weights, the embedding's table left out
PACK, LONG = 4096, 32768
PADDING = 0
JOBS = ("gpt2", "gpt2_as_nanogpt", "lora", "qlora", "full", "long", "moe")
Result = dict[str, float]


def ceiling() -> float:
    """TFLOP/s of a large bf16 matrix product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = timed(lambda: a @ b, warm=5, runs=30)
    return 2 * 8192**3 / seconds / 1e12


def rows_of_random_length(number: int) -> list[np.ndarray[Any, Any]]:
    """Token rows whose lengths are log-normal, 16 to 4,096, about 400 on average."""
    random = np.random.default_rng(0)
    lengths = random.lognormal(5.5, 1.0, number).clip(16, 4096).astype(int)
    return [random.integers(1, 150000, length).astype(np.int32) for length in lengths]


# npukit


class Packs:
    """Rows as npukit packs them."""

    def __init__(self, rows: Sequence[np.ndarray[Any, Any]], length: int) -> None:
        from npukit.llm.data.pack import pack

        self._rows, self._length = rows, length
        self._packs = pack(np.array([len(row) for row in rows]), length, seed=0)

    def __len__(self) -> int:
        return len(self._packs)

    def __getitem__(self, number: int) -> dict[str, Any]:
        from npukit.llm.data.rows import packed_row

        return packed_row([self._rows[row] for row in self._packs[number].tolist()], self._length, PADDING)


def train_with_npukit(
    shape: dict[str, Any],
    rows: Sequence[np.ndarray[Any, Any]],
    length: int,
    batch: int,
    tuning: str,
    quantize: str | None = None,
    steps: int = 40,
    **training: Any,
) -> Result:
    from npukit.llm.config.options import Config
    from npukit.llm.data.collate import Collator, tokens, weight
    from npukit.llm.finetune.train import make_model
    from npukit.llm.models.flops import flops_per_token
    from npukit.llm.tasks.losses.tokens import loss_of
    from npukit.train import Trainer

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(shape))
        training |= {"output": folder, "max_steps": steps, "batch_size": batch, "log_every": 2, "epochs": 100}
        config = Config.model_validate(
            {
                "model": {"path": folder, "from_config": True, "quantize": quantize},
                "tuning": {"method": tuning},
                "data": {"train": ["made here"], "cutoff": length},
                "training": {**training, "precision": "bf16", "save_every": None, "plot": False, "compile": False},
            }
        )
        compiled = config.training.model_copy(update={"compile": None})
        model = make_model(
            config.model_copy(update={"training": compiled}),
            folder,
            torch.device("cuda" if torch.cuda.is_available() else "cpu"),
        )
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # new weights are drawn on the GPU; a checkpoint's are not read there
        trainer = Trainer(
            model,
            config.training,
            Packs(rows, length),
            loss=functools.partial(loss_of, longest=length),
            weight=weight,
            size=functools.partial(tokens, pad_id=PADDING),
            collate=Collator(True, PADDING, length),
            save_model=lambda *_: None,
            flops_per_item=flops_per_token(model),
            item="tokens",
        )
        trainer.train()
        lines = [json.loads(line) for line in Path(folder, "log.jsonl").read_text().splitlines()]
    speeds = [line["items_per_second"] for line in lines if "items_per_second" in line]
    return result(float(np.median(speeds[len(speeds) // 2 :])))


def full_rows(number: int, length: int) -> list[np.ndarray[Any, Any]]:
    return list(np.random.default_rng(0).integers(1, 50000, (number, length)).astype(np.int32))


def contestants(checkout: Path | None, site: str, folder: Path) -> dict[str, dict[str, Callable[[], Result]]]:
    """What runs, by job and name; the folder holds a checkpoint while they run."""
    ours = functools.partial(train_with_npukit, tuning="full")
    lora = functools.partial(train_with_npukit, tuning="lora", steps=24)
    qlora = functools.partial(lora, quantize="nf4")
    trainer, unsloth = peers.transformers_lora, functools.partial(peers.unsloth_lora, site, folder, QWEN2)
    some, many, short, long = (
        rows_of_random_length(128),
        rows_of_random_length(1000),
        full_rows(640, 1024),
        full_rows(24, LONG),
    )
    jobs: dict[str, dict[str, Callable[[], Result]]] = {
        "gpt2": {
            "npukit": functools.partial(ours, GPT2, short, 1024, 32),
            "transformers' Trainer, compiled": functools.partial(
                peers.transformers_full, GPT2, short, 32, 1, compiled=True
            ),
        },
        "gpt2_as_nanogpt": {
            "npukit": functools.partial(ours, GPT2_AS_NANOGPT, short, 1024, 32),
            "transformers' Trainer, compiled": functools.partial(
                peers.transformers_full, GPT2_AS_NANOGPT, short, 32, 1, compiled=True
            ),
        },
        "lora": {
            "npukit, 1 pack": functools.partial(lora, QWEN2, many, PACK, 1),
            "npukit, 4 packs": functools.partial(lora, QWEN2, many, PACK, 4),
            "transformers' Trainer, 4 rows x 4": functools.partial(trainer, QWEN2, some, 4, 4),
        },
        "qlora": {"npukit, 1 pack": functools.partial(qlora, QWEN2, many, PACK, 1, activation_checkpointing=True)},
        "full": {
            "npukit, 4 packs": functools.partial(ours, QWEN2_SMALL, many, PACK, 4, steps=24),
            "transformers' Trainer, 4 rows x 4": functools.partial(
                peers.transformers_full, QWEN2_SMALL, some, 4, 4, compiled=False
            ),
        },
        "long": {
            "npukit, 1 row": functools.partial(lora, QWEN2, long, LONG, 1, activation_checkpointing=True),
        },
        "moe": {
            "npukit, 1 pack": functools.partial(lora, QWEN3_MOE, many, PACK, 1),
            "transformers' Trainer, 4 rows x 4": functools.partial(trainer, QWEN3_MOE, some, 4, 4),
        },
    }
    if checkout:
        jobs["gpt2_as_nanogpt"] |= {
            "nanoGPT, compiled": functools.partial(peers.nanogpt, checkout, True),
            "nanoGPT, compiled, a smaller model without biases": functools.partial(peers.nanogpt, checkout, False),
        }
    if site:
        jobs["lora"] |= {
            "Unsloth, 1 pack": functools.partial(unsloth, many, 1, PACK),
            "Unsloth, 4 packs": functools.partial(unsloth, many, 4, PACK),
            "Liger and transformers' Trainer, 4 rows x 4": functools.partial(peers.liger_lora, site, QWEN2, some, 4, 4),
        }
        jobs["qlora"]["Unsloth, 1 pack"] = functools.partial(unsloth, many, 1, PACK, four_bit=True, checkpointing=True)
        jobs["long"]["Unsloth, 1 row"] = functools.partial(unsloth, long, 1, LONG, checkpointing=True)
    return jobs


def run_all(checkout: Path | None, site: str, only: Sequence[str]) -> Iterator[str]:
    most = ceiling()
    torch.cuda.empty_cache()
    yield f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    yield f"the ceiling, a bf16 product of 8192² matrices: {most:.0f} TFLOP/s"
    with tempfile.TemporaryDirectory() as folder:
        jobs = contestants(checkout, site, Path(folder))
        for job in only or jobs:
            yield f"\n{job}\n| | tokens/s | npukit is | peak GiB |\n|---|---:|---:|---:|"
            yield from run_job(jobs[job])
    yield f"\n7B's shape, 4 operations a weight and token, at the ceiling: {most * 1e12 / QWEN2_FLOPS:,.0f} tokens/s"


def run_job(runners: dict[str, Callable[[], Result]]) -> Iterator[str]:
    """The rows of a table; a peer is compared with npukit's run whose name ends like its own, or with the first."""
    speeds: dict[str, float] = {}
    for name, got in results(runners):
        if "failed" in got:
            yield f"| {name} | failed: {got['failed']} | | |"
            continue
        who, _, how = name.partition(", ")
        speed = got["tokens_per_second"]
        if who == "npukit":
            speeds[how] = speed
            ratio = ""
        else:
            ratio = f"{speeds.get(how, next(iter(speeds.values()))) / speed:.2f} times" if speeds else ""
        yield f"| {name} | {speed:,.0f} | {ratio} | {got['peak_gib']:.1f} |"


def main(
    *,
    nanogpt: Annotated[Path | None, "a checkout of nanoGPT"] = None,
    peers: Annotated[str, "Unsloth and Liger beside it: a folder with their packages, or `pip`"] = "",
    only: Annotated[tuple[str, ...], JOBS] = (),
) -> None:
    for line in run_all(nanogpt, peers, only):
        print(line, flush=True)
