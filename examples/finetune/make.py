"""Make a small chat model with random weights, and questions and answers to fine-tune it on: nothing is downloaded.

python examples/finetune/make.py FOLDER
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CARDS = {"910A": 32, "910B1": 64, "910B3": 64, "310P3": 24}
QUESTIONS = ["How much memory does a {} have?", "Tell me the memory of a {}.", "A {}: how many GB?"]
ANSWERS = ["A {} has {} GB.", "It has {1} GB.", "The {} comes with {} GB of memory."]


def conversations(number: int) -> list[dict[str, str]]:
    """Made-up rows in alpaca's layout."""
    pick = random.Random(0)
    every = list(itertools.product(CARDS.items(), QUESTIONS, ANSWERS))
    rows = []
    for _ in range(number):
        (card, memory), question, answer = pick.choice(every)
        rows.append({"instruction": question.format(card), "input": "", "output": answer.format(card, memory)})
    return rows


def make_tokenizer(texts: list[str]) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT
    )


def main() -> None:
    disable_progress_bar()
    folder = Path(sys.argv[1])
    (folder / "data").mkdir(parents=True, exist_ok=True)
    rows = conversations(400)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "data" / "cards.jsonl").write_text(lines)
    tokenizer = make_tokenizer([text for row in rows for text in row.values()])
    torch.manual_seed(0)
    shape = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    Qwen2ForCausalLM(shape).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")


if __name__ == "__main__":
    main()
