"""Conversations as token ids and labels, exactly as LLaMA-Factory and ms-swift make them.

Their templates are data (llama_factory.yaml, ms_swift.yaml, written by scripts/make_template_facts.py); the two modules
of the same names put turns into them. Rows trained so are what the tools themselves would have trained on, and what
their chat commands expect.
"""
