"""A small model and rows in place of an example's own, and three steps of training with them."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests import seeing
from tests.quantized import quantized_copy

from npukit.errors import NpukitError
from npukit.llm.config.media import media_type
from npukit.llm.config.options import Config
from npukit.llm.finetune.train import train
from npukit.llm.medium import COLUMNS, TAGS, Kind
from npukit.llm.reading.check_media import kinds_of
from npukit.llm.reading.read import predicts, read
from npukit.rl.rank import train as train_generating

# What a part of a model's name says about its family, the first that fits.
FAMILIES = {
    "qwen3-next": "qwen3_next",
    "qwen3.5": "qwen3_5_text",
    "qwen3.6": "qwen3_5_text",
    "30b-a3b": "qwen3_moe",
    "235b-a22b": "qwen3_moe",
    "nemotron": "nemotron_h",
    "qwen3": "qwen3",
    "modernbert": "modernbert",
    "bert": "bert",
    "gpt-oss": "gpt_oss",
    "glm-4-9b-chat": "glm",
    "glm-4": "glm4",
    "gemma-2": "gemma2",
    "gemma": "gemma3_text",
    "mixtral": "mixtral",
    "mistral": "mistral",
    "phi-3": "phi3",
    "deepseek-r1-distill-qwen": "qwen2",
    "deepseek-r1-distill-llama": "llama",
    "llama": "llama",
    "deepseek": "llama",
    "yi-": "llama",
    "internlm": "internlm3",
    "qwen": "qwen2",
}
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
ASKED = [f"What is {number} and {number}?" for number in range(12)]
ROWS: dict[str, list[dict[str, Any]]] = {
    "sft": [{"query": asked, "response": f"It is {2 * number}."} for number, asked in enumerate(ASKED)],
    "pt": [{"text": f"{asked} Who knows. " * 3} for asked in ASKED],
    "dpo": [{"query": asked, "response": "Well.", "rejected_response": "No."} for asked in ASKED],
    "kto": [{"query": asked, "response": "Well.", "label": number % 2} for number, asked in enumerate(ASKED)],
    "classify": [{"query": asked, "label": number % 2} for number, asked in enumerate(ASKED)],
    "embed": [{"query": asked, "positive": f"{asked} Yes.", "label": 1.0} for asked in ASKED],
    "rerank": [{"query": asked, "positive": ["yes"], "negative": ["no", "never"]} for asked in ASKED],
}
ROWS["rm"] = ROWS["dpo"]
ROWS["grpo"] = [{"query": asked, "solution": f"${2 * number}$"} for number, asked in enumerate(ASKED)]
OTHERS = {"qwen2_audio": seeing.make_hearing_model}
OTHERS |= {family: partial(seeing.make_omni_model, family=family) for family in seeing.OMNI}
FILES: dict[Kind, tuple[str, str]] = {
    "image": ("a.png", "b.png"),
    "video": ("walk", "run"),
    "audio": ("a.wav", "b.wav"),
}
SECONDS = 180  # of one CPU, for one example
# What a part of a model's name says about how its weights are stored.
QUANTISED = {"awq": "awq", "int8": "gptq-8", "gptq": "gptq", "int4": "gptq"}


def tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "yes", "no", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def stand_in(name: str, task: str, folder: Path) -> tuple[str, Path]:
    """The family that a model's name speaks of, and a small model of it."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    kind = media_type(name) or next((kind for part, kind in FAMILIES.items() if part in name.lower()), "qwen2")
    place = folder / kind
    if kind in seeing.FAMILIES or kind in OTHERS:
        own = seeing.make_tokenizer()
        own.add_tokens(["yes", "no"])
        OTHERS[kind](own, place) if kind in OTHERS else seeing.make_model(kind, own, place)
    elif not place.exists():
        own = tokenizer()
        ids = {"vocab_size": len(own), "eos_token_id": own.eos_token_id, "pad_token_id": own.pad_token_id}
        config = AutoConfig.for_model(kind, **SMALL | ids)
        auto = AutoModelForMaskedLM if "bert" in kind else AutoModelForCausalLM
        auto.from_config(config).save_pretrained(place)
        own.save_pretrained(place)
    return kind, place


def with_media(rows: list[dict[str, Any]], kinds: list[Kind], points: bool, folder: Path) -> list[dict[str, Any]]:
    """The same rows, all but every third with a picture, a clip or a recording before its question."""
    for write in (seeing.write_pictures, seeing.write_clips, seeing.write_recordings):
        write(folder)
    columns = {kind: column for column, kind in COLUMNS.items()}
    made = []
    for number, row in enumerate(rows):
        if number % 3 == 2:
            made.append(row)
            continue
        kind = kinds[number % len(kinds)]
        more: dict[str, Any] = {columns[kind]: [FILES[kind][number % 2]]}
        if points and kind == "image" and "response" in row:
            more |= {"response": "A <ref-object> at <bbox>.", "objects": {"ref": ["cat"], "bbox": [[9, 9, 30, 40]]}}
        made.append({**row, "query": f"{TAGS[kind]}{row['query']}", **more})
    return made


def small(config: Config, folder: Path) -> tuple[str, Config]:
    """The run with a small model, own rows and three steps."""
    family, place = stand_in(config.model.path, config.task, folder)
    sees = family in seeing.FAMILIES or family in OTHERS
    stored = next((kind for part, kind in QUANTISED.items() if part in config.model.path.lower()), None)
    if stored and not sees:
        plain_model, place = place, folder / stored
        quantized_copy(plain_model, place, stored)
    rows, own = folder / f"{config.task}.jsonl", ROWS[config.task]
    if sees and config.task != "pt":
        kinds = [kind for source in config.data.train for kind in kinds_of(source)]
        points = any(source.preset == "coco" for source in config.data.train)
        own = with_media(own, kinds or ["audio" if family == "qwen2_audio" else "image"], points, folder)
    rows.write_text("".join(json.dumps(row) + "\n" for row in own))
    data = {"train": [{"path": str(rows)}], "cache": False, "preprocessing_workers": 1, "folder": str(folder)}
    data["media_dir"] = str(folder) if sees else None
    data["validation"] = [{"path": str(rows)}] if config.data.validation else 0.0
    length = min(config.data.cutoff, 1024)
    data |= {"cutoff": length, "pack_length": length if config.data.pack_length else None}
    training: dict[str, Any] = {
        "output": str(folder / "out"),
        "max_steps": 3,
        "precision": "fp32",
        "parallel": "ddp",
        "sequence_parallel": 1,
        "offload": False,
        "batch_size": min(config.training.batch_size, 2),
        "eval_batch_size": 2,
        "accumulation": min(config.training.accumulation, 2),
        "workers": 0,
        "resume": "never",
        "loggers": [],
        "plot": False,
        "compile": False,
        "log_every": 1,
        "eval_every": 3 if config.training.eval_every else None,
        "save_every": 3,
        "warmup": min(config.training.warmup, 1.0),
        "async_save": False,
    }
    layers = ("layers", "new_layers", "turn_layers")  # of which the small model has two
    tuning = {name: min(getattr(config.tuning, name), 2) for name in layers}
    plain = config.model_dump()
    model = {"path": str(place), "dtype": "float32", "adapter": None, "hub": "huggingface", "revision": None}
    for name, changes in (("model", model), ("data", data), ("training", training), ("tuning", tuning)):
        plain[name] |= changes
    plain["head"]["labels"] = config.head.labels
    if config.task == "grpo":
        _few_answers(plain, config)
    return family, Config(**plain)


def _few_answers(plain: dict[str, Any], config: Config) -> None:
    """A generation of two groups of short answers, with as many updates from it as the example makes."""
    per_step = (config.grpo.steps_per_generation or config.training.accumulation) // config.training.accumulation
    answers = min(config.grpo.num_generations, 4)
    plain["training"] |= {"batch_size": 2 * answers, "accumulation": 1, "max_steps": 3 * min(per_step, 2)}
    plain["grpo"] |= {
        "num_generations": answers,
        "steps_per_generation": min(per_step, 2),
        "max_completion_length": 24,
        "teacher": config.grpo.teacher and plain["model"]["path"],
    }


def train_small(verb: str, file: Path | None, words: list[str], environ: dict[str, str]) -> tuple[str, str]:
    """The family, and the losses or the reason why there are none."""
    if verb == "train" and predicts(file, words):
        return answer(str(file))
    config = read(file, words, environ, verb, files=False).config
    if "aqlm" in config.model.path.lower():
        return "", "not run: npukit does not read AQLM"
    output = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        try:
            family, wanted = small(config, Path(folder))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            return "", f"no small model of its family: {str(error)[:80]}"
        try:
            signal.signal(signal.SIGPROF, _too_long)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            generates = wanted.task == "grpo" or wanted.evaluation.predict_with_generate
            summary = (train_generating if generates else train)(wanted)
        except NpukitError as error:
            return family, f"REFUSED {error}"
        except Exception as error:
            return family, f"BUG {type(error).__name__}: {str(error)[:150]}"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    return family, f"{summary.steps} steps, loss {summary.first_loss:.4f} → {summary.last_loss:.4f}"


def answer(file: str) -> tuple[str, str]:
    """An example that answers rows instead of training: with a small model, by the command itself."""
    with tempfile.TemporaryDirectory() as folder:
        family, place = stand_in("llama", "sft", Path(folder))
        words = [f"model_name_or_path={place}", "adapter_name_or_path=", f"output_dir={folder}/out", "max_samples=3"]
        command = [sys.executable, "-m", "npukit", "train", file, *words, "max_new_tokens=4", "--device", "cpu"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10 * SECONDS)
        lines = (done.stdout or done.stderr).strip().splitlines()
        return family, f"{'answered' if done.returncode == 0 else 'FAILED'}: {lines[0].rpartition(': ')[2]}"


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")
