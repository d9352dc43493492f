"""Configurations as LLaMA-Factory and ms-swift users write them."""
