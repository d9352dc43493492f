"""How fast rows are read, rendered and tokenised: npukit beside datasets' own map, and LLaMA-Factory where it is there.

    python -m benchmarks prepare_data [--rows 100000] [--workers 1]

Each prepares the same file of short questions and answers with the same tokenizer (trained on the spot) and ChatML, in
a process of its own, without a cache. Seconds are CPU time, so that what runs beside does not count; the ratio is to
the faster of the others. LLaMA-Factory takes part if it can be imported (its src/ on PYTHONPATH).
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.contest import results
from benchmarks.tiny_server import make_tokenizer

CUTOFF = 512
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def texts(count: int, shortest: int, longest: int, seed: int) -> list[str]:
    """Sentences of words that recur."""
    chance = random.Random(seed)
    words = ["".join(chance.choices(LETTERS, k=chance.randint(2, 9))) for _ in range(3000)]
    return [" ".join(chance.choices(words, k=chance.randint(shortest, longest))) for _ in range(count)]


def npukit(rows: Path, tokenizer: Any, workers: int) -> int:
    from npukit.llm.config.options import DataOptions
    from npukit.llm.data.prepare import prepare
    from npukit.llm.tasks.task import named

    data = DataOptions(train=[{"path": str(rows)}], cutoff=CUTOFF, packing=False, preprocessing_workers=workers)
    return int(prepare(data, named("sft"), tokenizer, seed=0).train.lengths().sum())  # type: ignore[union-attr]


def datasets(rows: Path, tokenizer: Any, workers: int) -> int:
    """As its documentation and TRL's do: the template, then the tokens, and a mask of those that count."""
    from datasets import load_dataset

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        turns = [{"role": "user", "content": row["instruction"]}, {"role": "assistant", "content": row["output"]}]
        ids = tokenizer.apply_chat_template(turns, return_dict=False)
        asked = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, return_dict=False)
        return {"input_ids": ids[:CUTOFF], "labels": ([-100] * len(asked) + ids[len(asked) :])[:CUTOFF]}

    table = load_dataset("json", data_files=str(rows), split="train")
    made = table.map(encode, remove_columns=table.column_names, num_proc=workers if workers > 1 else None)
    return sum(map(len, made.with_format("numpy")["input_ids"]))


def llama_factory(rows: Path, tokenizer: Any, workers: int) -> int:
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments, ModelArguments
    from transformers import Seq2SeqTrainingArguments

    described = {"rows": {"file_name": rows.name}}
    (rows.parent / "dataset_info.json").write_text(json.dumps(described))
    arguments = DataArguments(
        dataset="rows", dataset_dir=str(rows.parent), template="qwen", cutoff_len=CUTOFF, overwrite_cache=True,
        preprocessing_num_workers=workers if workers > 1 else None,
    )  # fmt: skip
    template = get_template_and_fix_tokenizer(tokenizer, arguments)
    training = Seq2SeqTrainingArguments(output_dir=str(rows.parent / "out"))
    made = get_dataset(
        template, ModelArguments(model_name_or_path="none"), arguments, training, stage="sft", tokenizer=tokenizer
    )
    return sum(map(len, made["train_dataset"].with_format("numpy")["input_ids"]))


WAYS = {"npukit": npukit, "datasets": datasets, "llama_factory": llama_factory}


def measure(way: str, rows: Path, workers: int) -> tuple[float, int]:
    """CPU seconds of one preparation beyond the imports, and the tokens it gave."""
    os.environ |= {"NPUKIT_CACHE": str(rows.parent / way), "HF_DATASETS_CACHE": str(rows.parent / "hf")}
    tokenizer = make_tokenizer(texts(2000, 4, 25, seed=1), words=8000)
    before = cpu_seconds()
    tokens = WAYS[way](rows, tokenizer, workers)
    return cpu_seconds() - before, tokens


def cpu_seconds() -> float:
    """Of this process and of those that it waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def main(rows: int = 100_000, workers: int = 1) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        questions, answers = texts(rows, 4, 12, seed=1), texts(rows, 5, 25, seed=2)
        with path.open("w") as file:
            for question, answer in zip(questions, answers, strict=True):
                file.write(json.dumps({"instruction": question, "input": "", "output": answer}) + "\n")
        ways = [way for way in WAYS if way != "llama_factory" or importlib.util.find_spec("llamafactory")]
        taken = {}
        for way, result in results({way: functools.partial(measure, way, path, workers) for way in ways}):
            if "failed" in result:
                sys.exit(result["failed"])
            taken[way], tokens = result
            speed = rows / taken[way]
            print(f"{way:<16}{taken[way]:7.1f} CPU s {speed:9,.0f} rows a CPU second {tokens:12,} tokens", flush=True)
    print(f"npukit takes 1/{min(taken[way] for way in ways[1:]) / taken['npukit']:.1f} of the faster of the others")
