import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Text(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        ids = [(i * 7 + k) % 500 for k in range(64)]
        return {"input_ids": ids, "labels": ids}


model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_embd=192, n_layer=3, n_head=3, n_positions=64))
args = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=14, save_steps=1, save_total_limit=2,
    report_to=[], disable_tqdm=True, use_cpu=not torch.accelerator.is_available(), logging_steps=100, optim="adamw_torch_fused",
)
trainer = Trainer(model, args, train_dataset=Text())
trainer.train()  # slow: NPK808
