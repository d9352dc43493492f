"""/v1/embeddings gives the vectors that sentence-transformers' files ask for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit.errors import NpukitError
from npukit.inference.embedding import is_embedding_model, load_embedder
from npukit.llm.config.use import Use

TEXTS = ["a b c", "b", "c c a b a"]


def save(folder: Path, pooling: str, *others: str) -> Any:
    """A small BERT as sentence-transformers saves it; the model."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = BertConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    model = BertModel(config).eval()
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3, "c": 4}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    kinds = ["Transformer", "Pooling", *others]
    modules = [{"path": kind, "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "Pooling").mkdir()
    (folder / "Pooling/config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    return model


def expected(model: Any, ids: list[int], pooling: str) -> Any:
    with torch.no_grad():
        hidden = model(torch.tensor([ids]))[0][0]
    return {"cls_token": hidden[0], "mean_tokens": hidden.mean(0), "lasttoken": hidden[-1]}[pooling]


@pytest.mark.parametrize("pooling", ["cls_token", "mean_tokens", "lasttoken"])
def test_texts_together_are_as_each_alone(pooling: str, tmp_path: Path) -> None:
    model = save(tmp_path, pooling)
    embedder = load_embedder(Use(model={"path": str(tmp_path)}))
    ids = [embedder.tokenizer(text)["input_ids"] for text in TEXTS]
    vectors = embedder.embed(ids)
    for vector, own in zip(vectors, ids, strict=True):
        torch.testing.assert_close(vector, expected(model, own, pooling), atol=1e-5, rtol=1e-5)


def test_the_api(tmp_path: Path) -> None:
    import base64

    from starlette.testclient import TestClient

    from npukit.inference.server.embeddings import make_embedding_app
    from npukit.llm.config.use import ServeOptions

    save(tmp_path, "mean_tokens", "Normalize")
    assert is_embedding_model(str(tmp_path))
    options = ServeOptions(served_model_name=("small",), api_key=("key",))
    client = TestClient(
        make_embedding_app(load_embedder(Use(model={"path": str(tmp_path)})), options), "http://localhost"
    )
    assert client.post("/v1/embeddings", json={"input": "a"}).status_code == 401
    client.headers["Authorization"] = "Bearer key"
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "model": "small"}).json()
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert answer["usage"] == {"prompt_tokens": 9, "total_tokens": 9}
    first = answer["data"][0]["embedding"]
    assert sum(value**2 for value in first) == pytest.approx(1, abs=1e-5)
    packed = client.post("/v1/embeddings", json={"input": [2, 3, 4], "encoding_format": "base64"}).json()
    decoded = torch.frombuffer(bytearray(base64.b64decode(packed["data"][0]["embedding"])), dtype=torch.float32)
    assert decoded.tolist() == pytest.approx(first, abs=1e-6)
    for wrong, status in [({"input": []}, 400), ({"input": [99]}, 400), ({"input": "a", "model": "gpt"}, 404)]:
        vectors = client.post("/v1/embeddings", json=wrong)
        assert (vectors.status_code, set(vectors.json())) == (status, {"error"})
    assert client.post("/v1/embeddings", json={"input": "a", "dimensions": 3}).status_code == 400


def test_steps_that_are_not_known_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "mean_tokens", "Dense")
    with pytest.raises(NpukitError, match="Dense"):
        load_embedder(Use(model={"path": str(tmp_path)}))
