"""Rules about CUDA code, the engine that applies them, and the migration made of them."""
