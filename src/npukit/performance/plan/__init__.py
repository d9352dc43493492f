"""What a training run needs, before it is started: memory and time of a step, by a formula or by walking through it."""
