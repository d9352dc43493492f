"""A full disk is named as such wherever npukit writes, leaves nothing half written, and the next start goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

INSIDE = 'mount -t tmpfs -o size=6m none "$0" && exec "$@"'
ROWS_ANSWERED = "here/answers.jsonl.part"  # from which the next start goes on


def test_every_way_of_writing(tiny_qwen2: Path, tmp_path: Path) -> None:
    namespace = ["unshare", "--mount", "--map-root-user"]
    if subprocess.run([*namespace, "mount", "-t", "tmpfs", "none", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("no file systems of one's own here")
    script = [sys.executable, str(Path(__file__).with_name("full_disk.py")), str(tmp_path), str(tiny_qwen2)]
    done = subprocess.run([*namespace, "sh", "-c", INSIDE, str(tmp_path), *script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert len(outcomes) == 9
    for name, way in outcomes.items():
        assert re.search("disk is full|GB free, but", way["told"]), (name, way)
        assert set(way["left"]) <= {ROWS_ANSWERED}, (name, way)
        assert way["again"] == "", (name, way)
