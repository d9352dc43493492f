"""HCCL's rank table. A job of torchrun needs none: its ranks find each other through the store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLE = "RANK_TABLE_FILE"


def why_unusable(environ: Mapping[str, str]) -> str:
    """Why HCCL cannot use the file in RANK_TABLE_FILE; empty if it can, or if the variable is not set.

    ModelArts names a folder, and its file and MindCluster's may still be unfinished when a job starts.

    >>> why_unusable({"RANK_TABLE_FILE": "/user/config"})
    'it is a folder'
    """
    if not (name := environ.get(TABLE)):
        return ""
    path = Path(name)
    if path.is_dir():
        return "it is a folder"
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
        status = table.get("status", "completed")
    except (OSError, ValueError, AttributeError):
        return "it is not a readable JSON file"
    if status != "completed":
        return f"its status is {status}"
    return "" if "server_list" in table or "rank_list" in table else "it has no list of servers or ranks"
