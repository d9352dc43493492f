"""A rank table that HCCL cannot use does not reach the ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from npukit.launch.rank_table import TABLE, why_unusable
from npukit.launch.run import spare_launcher

READY = {"status": "completed", "version": "1.0", "server_count": "1", "server_list": []}


@pytest.mark.parametrize(
    ("contents", "usable"),
    [
        (None, False),  # a folder, as on ModelArts
        ("", False),
        ("{", False),
        ("[]", False),
        (json.dumps({**READY, "status": "initializing"}), False),
        (json.dumps({"status": "completed", "group_list": []}), False),
        (json.dumps(READY), True),
    ],
)
def test_what_a_rank_table_must_be(tmp_path: Path, contents: str | None, usable: bool) -> None:
    path = tmp_path / "hccl.json"
    path.mkdir() if contents is None else path.write_text(contents)
    environment = {TABLE: str(path)}
    assert (why_unusable(environment) == "") is usable
    spare_launcher(environment, 2)
    assert (TABLE in environment) is usable


def test_no_rank_table_is_none_to_complain_of() -> None:
    assert why_unusable({}) == ""
