"""Predicts the memory and time of a training step, by a formula or by walking through the step."""
