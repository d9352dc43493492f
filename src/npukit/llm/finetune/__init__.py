"""Fine-tuning and pre-training: one rank of a training, and the files that it writes."""
