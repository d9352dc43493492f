"""The tables of other tools' keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npukit.cli.help import long_names
from npukit.cli.train import NEAR
from npukit.cli.verbs import Verb, load
from npukit.errors import NpukitError
from npukit.llm.config.dialects.table import Dialect
from npukit.llm.config.dialects.training import DIALECTS
from npukit.llm.config.dialects.training.llama_factory import LLAMA_FACTORY
from npukit.llm.config.dialects.training.swift import SWIFT
from npukit.llm.config.nearest import nearest
from npukit.llm.config.options import Config
from npukit.llm.config.schema import options
from npukit.llm.reading.read import read


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_every_row_leads_somewhere(dialect: Dialect) -> None:
    known = {*options(Config), "task"}
    for key, row in dialect.rows.items():
        beside = bool(row.ignored) and not row.renamed  # else it has no effect only beside the other key
        kinds = [bool(row.to), beside, bool(row.unsupported), bool(row.renamed)]
        assert sum(kinds) == 1, f"{key} must be translated, ignored, unsupported or renamed"
        assert bool(row.renamed) == bool(row.since), key
        now = dialect.row(row.renamed) if row.renamed else row
        assert now and not (row.renamed and now.renamed), f"{key} is renamed to a key that is there"
        assert set(row.to) <= known, key
        assert not row.by or row.by in dialect.functions, key
        assert row.by or len(row.to) <= 1, key


def test_keys_that_a_user_of_theirs_writes_are_all_in_the_tables() -> None:
    lora = ["lora_rank", "lora_alpha", "lora_dropout", "lora_target", "use_rslora", "use_dora", "additional_target"]
    data = [
        "dataset_dir",
        "cutoff_len",
        "max_samples",
        "val_size",
        "packing",
        "neat_packing",
        "streaming",
        "mask_history",
    ]
    assert all(LLAMA_FACTORY.row(key) for key in [*lora, *data, "vllm_maxlen", "galore_rank", "save_total_limit"])
    flags = [
        "model",
        "dataset",
        "train_type",
        "tuner_type",
        "torch_dtype",
        "target_modules",
        "attn_impl",
        "model_type",
        "use_hf",
        "max_length",
    ]
    assert all(SWIFT.row(key) for key in [*flags, "dataloader_num_workers", "swanlab_project", "dataset_num_proc"])


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_no_key_is_near_an_option_of_the_command(dialect: Dialect) -> None:
    known = long_names(load(Verb("train")))
    assert not [key for key in dialect.keys if nearest(f"--{key}", known, cutoff=NEAR)]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-2, 2),
    st.text(max_size=4),
    st.just(["a", 1]),
    st.just({"min_lr": "a"}),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_written_is_understood_or_refused(folder: Path, data: st.DataObject) -> None:
    dialect = data.draw(st.sampled_from(DIALECTS))
    keys = st.sampled_from([key for key, row in dialect.rows.items() if row.to])
    written = data.draw(st.dictionaries(keys, VALUES, max_size=4))
    model, rows = ("model_name_or_path", "identity") if dialect is LLAMA_FACTORY else ("model", "rows.jsonl")
    (folder / "x.yaml").write_text(json.dumps({model: "models/tiny", "dataset": rows, **written}))
    try:
        assert isinstance(read(Path("x.yaml"), [], {}).config, Config)
    except NpukitError as error:
        assert "x.yaml" in str(error)
