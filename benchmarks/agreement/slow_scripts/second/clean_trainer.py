import tempfile

import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(5, 2000, (8 * 14, 64))]
config = BertConfig(vocab_size=2000, hidden_size=384, num_hidden_layers=4, num_attention_heads=6, intermediate_size=1536)
args = TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=8, max_steps=14, save_strategy="no", report_to=[],
    disable_tqdm=True, use_cpu=not torch.accelerator.is_available(), optim="adamw_torch_fused",
)
Trainer(BertForMaskedLM(config), args, train_dataset=rows).train()
