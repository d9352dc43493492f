"""Broken files and data sets in both dialects: each must end with one sentence and exit code 2, quickly.

    python -m benchmarks switching_broken [--only NAME ...]

LLaMA-Factory's YAML, its dataset_info.json, ms-swift's flags, models and rows, each broken in one way. A case is good
if the command ends with exit code 2, without a traceback, names what is wrong in at most three lines, and leaves no
output folder. The time is that of the processor, with the start of Python, so that a busy machine does not count.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tiny_server import make_example

LIMIT = 2.0  # seconds
ROW = {"instruction": "Say a.", "input": "", "output": "a"}
PAIR = {"query": "Say a.", "response": "a", "rejected_response": "b"}
INFO = {"mine": {"file_name": "rows.jsonl"}}
RECIPE = {"stage": "sft", "do_train": True, "finetuning_type": "lora", "template": "qwen", "dataset": "mine"}
PATHS = {"model_name_or_path": "model", "dataset_dir": ".", "output_dir": "out"}
FLAGS = {"model": "model", "dataset": "rows.jsonl", "output_dir": "out", "tuner_type": "lora"}


@dataclass(frozen=True)
class Case:
    """A command, and files that are written over the good ones; None removes one."""

    words: tuple[str, ...]
    files: Mapping[str, str | bytes | None] = field(default_factory=dict)


def recipe(files: Mapping[str, str | bytes | None] | None = None, **keys: Any) -> Case:
    """LLaMA-Factory's file with these keys changed."""
    made = {name: value for name, value in {**RECIPE, **PATHS, **keys}.items() if value is not None}
    return Case(("train", "recipe.yaml"), {"recipe.yaml": json.dumps(made), **(files or {})})


def as_written(text: str | bytes) -> Case:
    return Case(("train", "recipe.yaml"), {"recipe.yaml": text})


def flags(
    files: Mapping[str, str | bytes | None] | None = None, verb: str = "sft", more: tuple[str, ...] = (), **given: Any
) -> Case:
    """ms-swift's command with these flags changed."""
    made = {name: value for name, value in {**FLAGS, **given}.items() if value is not None}
    words = (word for name, value in made.items() for word in (f"--{name}", str(value)))
    return Case((verb, *words, *more), files or {})


def info(**entry: Any) -> Case:
    return recipe({"dataset_info.json": json.dumps({"mine": entry})})


def rows(*several: Any, **keys: Any) -> Case:
    return recipe({"rows.jsonl": "".join(json.dumps(row) + "\n" for row in several)}, **keys)


GOOD = "stage: sft\nmodel_name_or_path: model\ndataset: mine\ndataset_dir: .\noutput_dir: out\ntemplate: qwen\n"
CASES: dict[str, Case] = {
    # LLaMA-Factory: the file itself
    "a tab in the indentation": as_written(GOOD + "lora_target:\n\t- q_proj\n"),
    "an open bracket": as_written(GOOD + "lora_target: [q_proj\n"),
    "a key twice": as_written(GOOD + "stage: dpo\n"),
    "a list instead of keys": as_written("- stage\n- sft\n"),
    "an empty file": as_written(""),
    "bytes that are no text": as_written(bytes(range(128, 256)) * 8),
    "a file in UTF-16": as_written(GOOD.encode("utf-16")),
    "a zero byte": as_written(GOOD.replace("qwen", "qw\0en")),
    "an alias of nothing": as_written(GOOD + "lora_rank: *rank\n"),
    "marks of a merge": as_written("<<<<<<< HEAD\n" + GOOD + "=======\n"),
    "no such file": Case(("train", "recipes.yaml")),
    "a folder instead of a file": Case(("train", "model")),
    # its values
    "a word for the rate": recipe(learning_rate="fast"),
    "negative epochs": recipe(num_train_epochs=-1),
    "rank 0": recipe(lora_rank=0),
    "1k tokens": recipe(cutoff_len="1k"),
    "two and a half rows": recipe(per_device_train_batch_size=2.5),
    "a misspelt method": recipe(finetuning_type="lorra"),
    "a misspelt stage": recipe(stage="sftt"),
    "a misspelt template": recipe(template="qwenn"),
    "bf16: maybe": recipe(bf16="maybe"),
    "3 bits": recipe(quantization_bit=3),
    "a misspelt data set": recipe(dataset="mien"),
    "an unknown key": recipe(lerning_rate=1e-4),
    "a misspelt schedule": recipe(lr_scheduler_type="cosinus"),
    "a DeepSpeed file that is not there": recipe(deepspeed="ds_z9.json"),
    "a DeepSpeed file that is no JSON": recipe({"ds.json": "{stage: 3"}, deepspeed="ds.json"),
    "an output that is a file": recipe(output_dir="rows.jsonl"),
    "an adapter that is none": recipe(adapter_name_or_path="model"),
    "no trainable layer": recipe(finetuning_type="freeze", freeze_trainable_layers=0),
    "a misspelt loss of pairs": recipe(stage="dpo", pref_loss="sigmoidd"),
    "a checkpoint that is not there": recipe(resume_from_checkpoint="out/checkpoint-7"),
    "validation twice": recipe(val_size=0.1, eval_dataset="mine"),
    "more validation than rows": recipe(val_size=50),
    "no model": recipe(model_name_or_path=None),
    "no data set": recipe(dataset=None),
    "targets that the model has not": recipe(lora_target="q_prj"),
    # models
    "a model that is not there": recipe(model_name_or_path="models/mine"),
    "a model that is a file": recipe(model_name_or_path="rows.jsonl"),
    "a model without config.json": recipe({"model/config.json": None}),
    "a config.json cut off": recipe({"model/config.json": '{"model_type": "qw'}),
    "weights cut off": recipe({"model/model.safetensors": b"\x40\0\0\0\0\0\0\0{"}),
    "no weights": recipe({"model/model.safetensors": None}),
    "a part of the weights that is missing": recipe(
        {"model/model.safetensors.index.json": json.dumps({"weight_map": {"a": "model-00002-of-00002.safetensors"}})}
    ),
    "an index of weights cut off": recipe({"model/model.safetensors.index.json": '{"weight_map": {'}),
    "no tokenizer": recipe({"model/tokenizer.json": None, "model/tokenizer_config.json": None}),
    "a tokenizer.json cut off": recipe({"model/tokenizer.json": '{"version": "1.0", "model": {"vo'}),
    "calls without a name": flags(
        {"rows.jsonl": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}]}\n'}
    ),
    "tools that are a number": flags({"rows.jsonl": json.dumps({**ROW, "tools": 5}) + "\n"}),
    "an agent template that nobody has": flags(agent_template="hermess", template="chatml"),
    # dataset_info.json
    "dataset_info.json cut off": recipe({"dataset_info.json": '{"mine": {'}),
    "dataset_info.json is a list": recipe({"dataset_info.json": "[]"}),
    "an entry without a file": info(formatting="alpaca"),
    "an entry whose file is not there": info(file_name="row.jsonl"),
    "a misspelt layout": info(file_name="rows.jsonl", formatting="sharegtp"),
    "columns that no row has": info(file_name="rows.jsonl", columns={"prompt": "question", "response": "answer"}),
    "a misspelt column": info(file_name="rows.jsonl", columns={"promt": "instruction"}),
    # rows
    "no rows": recipe({"rows.jsonl": ""}),
    "rows that are no JSON": recipe({"rows.jsonl": "instruction,output\nSay a.,a\n"}),
    "rows without an answer": rows({"instruction": "Say a."}),
    "rows that are numbers": rows(1, 2, 3),
    "answers that are numbers": rows({"instruction": "Say a.", "output": {"a": [1]}}),
    "a question instead of an answer": rows({"conversations": [{"from": "human", "value": "Say a."}]}),
    "rows that are not in UTF-8": recipe({"rows.jsonl": b'{"instruction": "\xff\xfe", "output": "a"}\n'}),
    "JSON cut off": recipe(
        {"rows.json": '[{"instruction": "Say a.", "out', "dataset_info.json": '{"mine": {"file_name": "rows.json"}}'}
    ),
    "a table that is no Parquet": flags({"rows.parquet": b"PAR1 no"}, dataset="rows.parquet"),
    "a file of another kind": flags({"rows.docx": b"PK"}, dataset="rows.docx"),
    "a CSV without columns": flags({"rows.csv": "a;b\n1;2\n"}, dataset="rows.csv"),
    "pairs without a worse answer": rows(ROW, stage="dpo"),
    "KTO without labels": rows(ROW, stage="kto"),
    # ms-swift's flags
    "a misspelt flag": flags(lora_rnak=8),
    "a flag without a value": flags(more=("--learning_rate",)),
    "a flag twice": flags(more=("--model", "other")),
    "a word that belongs to nothing": flags(more=("8",)),
    "a misspelt tuner": flags(tuner_type="loraa"),
    "a number of rows that is none": flags(dataset="rows.jsonl#many"),
    "zero9": flags(deepspeed="zero9"),
    "int8 weights": flags(torch_dtype="int8"),
    "rank eight": flags(lora_rank="eight"),
    "a share above one": flags(split_dataset_ratio=1.5),
    "accumulation 0": flags(gradient_accumulation_steps=0),
    "packing maybe": flags(packing="maybe"),
    "5 bits": flags(quant_method="bnb", quant_bits=5),
    "evaluation sometimes": flags(eval_strategy="sometimes"),
    "a template that nobody has": flags(template="qwen9"),
    "a loss scale that nobody has": flags(loss_scale="sometimes"),
    "a misspelt kind of rlhf": flags(verb="rlhf", rlhf_type="dppo"),
    "rlhf without pairs": flags(verb="rlhf", rlhf_type="dpo"),
    "a task that nobody has": flags(task_type="seq_class"),
    "a classifier without its labels": flags(task_type="seq_cls"),
    "no data": flags(dataset=None),
    "data that is not there": flags(dataset="row.jsonl"),
    "messages that are text": flags({"rows.jsonl": '{"messages": "Say a."}\n'}),
    "a role that nobody has": flags({"rows.jsonl": '{"messages": [{"role": "boss", "content": "Say a."}]}\n'}),
    "one device for rows shared by two": flags(sequence_parallel_size=2),
    "epochs that are not a number": flags(num_train_epochs="nan"),
}


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    code: int
    seconds: float
    text: str
    left: bool

    def problems(self) -> list[str]:
        # Notes on how the file was understood may come first, below a line that says whose file it is.
        notes = ("  ", "npukit: read as")
        lines = [line for line in self.text.splitlines() if line.strip() and not line.startswith(notes)]
        wrong = {
            f"exit code {self.code}": self.code != 2,
            "a traceback": "Traceback" in self.text,
            f"{len(lines)} lines": not 1 <= len(lines) <= 3,
            f"{self.seconds:.1f} s": self.seconds > LIMIT,
            "an output folder": self.left,
        }
        return [what for what, is_so in wrong.items() if is_so]


def try_case(case: Case, model: Path, folder: Path) -> Ending:
    """Write the case's files beside good ones, and run its command there."""
    shutil.copytree(model, folder / "model")
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "dataset_info.json").write_text(json.dumps(INFO))
    for name, content in case.files.items():
        if content is None:
            (folder / name).unlink()
        elif isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            (folder / name).write_text(content, encoding="utf-8")
    command = [sys.executable, "-m", "npukit", case.words[0], "--device", "cpu", *case.words[1:]]
    with (folder / "said").open("w+") as output:
        process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    process.returncode = os.waitstatus_to_exitcode(status)
    return Ending(process.returncode, used.ru_utime + used.ru_stime, text, (folder / "out").exists())


def main(only: tuple[str, ...] = tuple(CASES)) -> None:
    good, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as name:
        make_example(Path(name))
        for number, case in enumerate(only):
            folder = Path(name) / str(number)
            folder.mkdir()
            ending = try_case(CASES[case], Path(name) / "model", folder)
            problems = ending.problems()
            good, slowest = good + (not problems), max(slowest, ending.seconds)
            text = " / ".join(ending.text.split("\n")).strip()
            print(f"{'BAD ' + ', '.join(problems) if problems else 'good'} | {case} | {text[:300]}", flush=True)
    print(f"{good} of {len(only)} broken inputs: one sentence and exit code 2; the slowest took {slowest:.1f} s of CPU")
    sys.exit(good < len(only))
