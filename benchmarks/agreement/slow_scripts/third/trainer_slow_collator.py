"""Fine-tune a classifier with transformers' Trainer on texts that are cleaned on the way."""
import html
import re
import tempfile
import unicodedata
from dataclasses import dataclass

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

RAW = [{"text": ("<p>A wonderful film &amp; a &quot;must see&quot; No. %d!</p> " % n) * 60, "label": n % 2} for n in range(16 * 14)]


@dataclass
class DataCollator:
    max_length: int = 64

    def __call__(self, features):
        ids = [self.encode(feature["text"]) for feature in features]
        return {"input_ids": torch.tensor(ids), "labels": torch.tensor([feature["label"] for feature in features])}

    def encode(self, text):
        text = unicodedata.normalize("NFKC", html.unescape(text))
        text = re.sub(r"<[^>]+>", " ", text)
        words = re.findall(r"[a-z]+|\d|[^\w\s]", text.lower())
        pieces = [word[i : i + 3] for word in words for i in range(0, len(word), 3)]
        ids = [sum(ord(c) * 31**n for n, c in enumerate(piece)) % 1997 + 3 for piece in pieces]
        return (ids + [0] * self.max_length)[: self.max_length]


def main():
    config = BertConfig(vocab_size=2000, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128)
    args = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=16, max_steps=14, save_strategy="no", report_to=[],
        disable_tqdm=True, use_cpu=not torch.accelerator.is_available(), optim="adamw_torch_fused", remove_unused_columns=False,
    )
    trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=RAW, data_collator=DataCollator())
    trainer.train()  # slow: NPK803


main()
