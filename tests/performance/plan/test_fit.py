"""--fit and --table."""

from __future__ import annotations

from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.performance.plan.fit import changed, find_fit
from npukit.performance.plan.table import make_table


def config(model: str = "Qwen/Qwen2-7B", method: str = "lora", **training: Any) -> Config:
    return Config(model={"path": model}, data={"train": "rows.jsonl"}, tuning={"method": method}, training=training)


def test_the_same_training_is_kept_where_it_can_be() -> None:
    result = find_fit(config(batch_size=16), 1, "910B3")
    assert result.kind == "same training" and result.plan.fits
    after = result.config.training
    assert after.batch_size * after.accumulation == 16
    assert result.changes.keys() <= {
        "training.batch_size",
        "training.accumulation",
        "training.activation_checkpointing",
    }


@pytest.mark.parametrize(
    ("devices", "kind"),
    [(8, "same training"), (1, "only an adapter")],
)
def test_all_weights_of_a_large_model_are_shared_out_or_left(devices: int, kind: str) -> None:
    result = find_fit(config(method="full"), devices, "910B3")
    assert result.kind == kind and result.plan.fits
    assert changed(config(method="full"), result.changes) == result.config


def test_what_fits_no_card_at_all_needs_more_of_them() -> None:
    result = find_fit(config("Qwen/Qwen2.5-72B"), 1, "910B4")
    assert result.kind == "more cards" and result.devices > 1 and result.plan.fits


def test_a_model_that_is_not_known_cannot_be_helped() -> None:
    with pytest.raises(NpukitError):
        find_fit(config("someone/unknown"), 1, "910B3")


def test_the_table_has_every_way_on_every_number_of_cards() -> None:
    rows = make_table(config(activation_checkpointing=True), "910B3")
    of = {(row.method, row.cards, row.parallel): row for row in rows}
    assert len(of) == 18
    assert of["lora", 1, "ddp"].fits and not of["full", 1, "ddp"].fits and of["full", 8, "zero3"].fits
    assert of["full", 8, "zero2"].bytes > of["full", 8, "zero3"].bytes
    with pytest.raises(NpukitError, match=r"config\.json"):
        make_table(config("someone/unknown"), "910B3")
