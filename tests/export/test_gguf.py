"""GGUF that transformers, which reads it as llama.cpp does, computes the same logits with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.export.conftest import MakeModel

from npukit.errors import NpukitError
from npukit.export.gguf import FILE, export_gguf


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_what_is_written_computes_the_same(family: str, make_model: MakeModel, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = make_model(family)
    done = export_gguf(folder, [], tmp_path / "gguf")
    ids = torch.tensor([[5, 9, 17, 3, 40]])
    before = AutoModelForCausalLM.from_pretrained(folder)
    after: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "gguf", gguf_file=FILE, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(after(ids).logits, before(ids).logits, atol=1e-4, rtol=1e-4)
    text = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n"
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == _tokens(tmp_path / "gguf" / FILE, text, folder)
    assert done.architecture == family and (tmp_path / "gguf" / "Modelfile").is_file()


def _tokens(file: Path, text: str, folder: Path) -> list[int]:
    """The numbers that the file gives the tokens of a text."""
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    field = GGUFReader(file).fields["tokenizer.ggml.tokens"]
    numbers = {bytes(field.parts[at]).decode(): number for number, at in enumerate(field.data)}
    return [numbers[token] for token in AutoTokenizer.from_pretrained(folder).tokenize(text)]


def test_a_family_that_is_not_written_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    with pytest.raises(NpukitError):
        export_gguf(make_model("gpt2"), [], tmp_path / "gguf")
    assert not (tmp_path / "gguf").exists()
