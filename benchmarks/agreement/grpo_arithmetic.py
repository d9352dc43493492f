"""Does GRPO make a model better at questions that it was not trained with?

    python -m benchmarks grpo_arithmetic [--steps 200]

A small model learns sums from text in which more than half of the results are wrong, in this process and within a
minute. GRPO, which rewards right results, then trains it with some questions; others are held out. Both are answered
before and after, by sampling at temperature 1 and by the likeliest tokens.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

LARGEST, HELD_OUT = 20, 100  # of a summand; questions
RIGHT = 0.4  # share of results in the text that are right; the others are off by 1 to 3
WORDS = ["<pad>", "<end>", "<answer>", "</answer>", *"0123456789+="]
SAMPLES = 8  # answers to each question, of which the mean is taken
Question = tuple[int, int]
REWARD = """
def right(completions, solution, **kwargs):
    return [float(text == f"<answer>{result}</answer>") for text, result in zip(completions, solution)]
"""


def make_tokenizer() -> Any:
    """One token for each sign."""
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"</?answer>|."), "isolated")
    made.decoder = decoders.Fuse()
    chat = "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}<end>{% endif %}{% endfor %}"
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>", chat_template=chat)


def asked(question: Question) -> str:
    return "{}+{}=".format(*question)


def pretrained(questions: list[Question], tokenizer: Any, steps: int) -> Any:
    """A model that has read sums, most of them wrong."""
    torch.manual_seed(0)
    draw = random.Random(0)
    ids = {"vocab_size": 256, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model: Any = Qwen2ForCausalLM(Qwen2Config(**ids, **shape, num_key_value_heads=4, max_position_embeddings=64))
    optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(steps):
        some = draw.choices(questions, k=64)
        off = [0 if draw.random() < RIGHT else draw.choice((-3, -2, -1, 1, 2, 3)) for _ in some]
        texts = [f"{asked(q)}<answer>{abs(sum(q) + by)}</answer><end>" for q, by in zip(some, off, strict=True)]
        batch = tokenizer(texts, return_tensors="pt", padding=True)
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model


@torch.no_grad()
def accuracy(model: Any, questions: list[Question], tokenizer: Any, samples: int) -> float:
    """The share of right answers; without samples those of the likeliest tokens."""
    tokenizer.padding_side = "left"  # answers begin where their questions end
    batch = tokenizer([asked(question) for question in questions], return_tensors="pt", padding=True)
    how: dict[str, Any] = (
        {"do_sample": False} if not samples else {"do_sample": True, "top_k": 0, "num_return_sequences": samples}
    )
    torch.manual_seed(0)
    made = model.eval().generate(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=6, **how
    )
    texts = tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    wanted = [f"<answer>{sum(question)}</answer>" for question in questions for _ in range(samples or 1)]
    return [text == right for text, right in zip(texts, wanted, strict=True)].count(True) / len(wanted)


def main(
    steps: Annotated[int, "of GRPO"] = 200,
    reading: Annotated[int, "steps of reading before it"] = 600,
) -> None:
    """Train, and print the accuracy before and after."""
    questions = [(first, second) for first in range(LARGEST) for second in range(LARGEST)]
    random.Random(2).shuffle(questions)
    held_out, known = questions[:HELD_OUT], questions[HELD_OUT:]
    tokenizer = make_tokenizer()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = pretrained(known, tokenizer, reading)
        model.save_pretrained(folder / "model")
        make_tokenizer().save_pretrained(folder / "model")
        _show("before", model, known[:HELD_OUT], held_out, tokenizer)
        rows = [{"prompt": asked(question), "solution": str(sum(question))} for question in known]
        (folder / "reward.py").write_text(REWARD)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        subprocess.run(_command(folder, steps), check=True, stdout=sys.stderr)
        trained = AutoModelForCausalLM.from_pretrained(folder / "output")
        _show("after", trained, known[:HELD_OUT], held_out, tokenizer)


def _show(when: str, model: Any, known: list[Question], held_out: list[Question], tokenizer: Any) -> None:
    figures = [accuracy(model, some, tokenizer, samples) for samples in (SAMPLES, 0) for some in (held_out, known)]
    print(
        f"{when}: held-out questions {figures[0]:.3f} sampled, {figures[2]:.3f} greedy; "
        f"trained ones {figures[1]:.3f} sampled, {figures[3]:.3f} greedy",
        flush=True,
    )


def _command(folder: Path, steps: int) -> list[str]:
    options = {
        "task": "grpo",
        "model.path": folder / "model",
        "tuning.method": "full",
        "data.train": folder / "rows.jsonl",
        "data.cutoff": 32,
        "rewards.plugins": folder / "reward.py",
        "grpo.num_generations": 8,
        "grpo.max_completion_length": 6,
        "training.output": folder / "output",
        "training.batch_size": 256,
        "training.max_steps": steps,
        "training.learning_rate": 3e-4,
        "training.schedule": "constant",
        "training.warmup": 5,
        "training.log_every": 10,
        "training.plot": "false",
    }
    words = [f"{key}={value}" for key, value in options.items()]
    return [sys.executable, "-m", "npukit", "train", *words, "--device", "cpu"]
