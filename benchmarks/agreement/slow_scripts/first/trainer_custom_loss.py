import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32 * 14

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {"input_ids": torch.randint(5, 900, (32,), generator=g), "labels": i % 4}


class ContrastiveTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        logits = out.logits
        loss = torch.nn.functional.cross_entropy(logits, labels)
        for a in range(len(labels)):  # slow: NPK809
            for b in range(len(labels)):  # slow: NPK809
                d = (logits[a] - logits[b]).pow(2).sum()  # slow: NPK809
                loss = loss + 1e-4 * d  # slow: NPK809
        return (loss, out) if return_outputs else loss


config = BertConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, num_labels=4)
args = TrainingArguments("out_trainer", per_device_train_batch_size=32, num_train_epochs=1, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=not torch.accelerator.is_available())
ContrastiveTrainer(BertForSequenceClassification(config), args, train_dataset=Rows()).train()
