"""Fine-tuning and pre-training: one rank of a training, and what it leaves behind."""
