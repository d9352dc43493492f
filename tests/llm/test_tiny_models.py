"""The made-up tokenizer and model that the other tests stand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_tiny_tokenizer_is_lossless_and_speaks_chatml(tiny_tokenizer: Any) -> None:
    text = "<|im_start|>user\nÄ ünïcode 中文?<|im_end|>\n"
    ids = tiny_tokenizer(text)["input_ids"]
    assert tiny_tokenizer.decode(ids) == text
    assert ids[0] == tiny_tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert tiny_tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == (
        "<|im_start|>user\nHi<|im_end|>\n"
    )


def test_tiny_qwen2_loads_and_computes(tiny_qwen2: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_qwen2)
    model = AutoModelForCausalLM.from_pretrained(tiny_qwen2)
    batch = tokenizer("The sky is blue.", return_tensors="pt")
    assert model(**batch).logits.shape == (1, batch["input_ids"].shape[1], len(tokenizer))
