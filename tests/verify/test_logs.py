"""Losses in the files that a run wrote."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from npukit.verify.logs import losses_written, state_of


def found(folder: Path) -> list[tuple[str, float, int | None]]:
    return [(loss.name, round(loss.value, 6), loss.step) for loss in losses_written(folder, {})]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("log.jsonl", '{"step": 1, "m": {"loss": 0.5}}\n', [("log.jsonl: m/loss", 0.5, 1)]),
        ("state.json", '{"log_history": [{"loss": 0.5, "step": 3}], "loss_scale": 8}',
         [("state.json: log_history/loss", 0.5, 3)]),
        ("run-2026/h12.json", '{"train_loss": [1, 0.5]}',
         [("h#.json: train_loss", 1, None), ("h#.json: train_loss", 0.5, None)]),
        ("metrics.csv", "step,Loss,lr\n1,0.5,0.1\n2,,0.1\n", [("metrics.csv: loss", 0.5, 1)]),
        ("train.log", "iter 3: loss 0.25\n", [("train.log: loss", 0.25, 3)]),
        ("broken.json", '{"loss": ', []),
    ],
)  # fmt: skip
def test_text(tmp_path: Path, name: str, text: str, expected: list[tuple[str, float, int | None]]) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    assert found(tmp_path) == expected
    assert not list(losses_written(tmp_path, state_of(tmp_path))), "what was there before is of another run"


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step in range(2):
        values = [
            Summary.Value(tag="train/loss", simple_value=0.5 / (step + 1)),
            Summary.Value(tag="lr", simple_value=1),
        ]
        writer.add_event(Event(step=step, summary=Summary(value=values)))
    writer.close()
    assert found(tmp_path) == [("TensorBoard: train/loss", 0.5, 0), ("TensorBoard: train/loss", 0.25, 1)]
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    assert found(tmp_path)[0] == ("TensorBoard: train/loss", 0.5, 0), "cut short, as by a kill"


def test_wandb(tmp_path: Path) -> None:
    """As wandb 0.31 writes it: a header, then records in blocks, where one that does not fit goes on in the next."""

    def field(number: int, data: bytes) -> bytes:
        length = len(data)
        size = bytes([length]) if length < 128 else bytes([length & 127 | 128, length >> 7])
        return (
            (bytes([number << 3 | 2]) if number < 16 else bytes([number << 3 & 127 | 130, number >> 4])) + size + data
        )

    items = {"train/loss": 0.5, "_step": 7, "note": "x" * 40}
    item = b"".join(
        field(1, field(2, key.encode()) + field(16, json.dumps(value).encode())) for key, value in items.items()
    )
    record = field(2, item)
    half = len(record) // 2
    parts = [(2, record[:half]), (4, record[half:]), (1, record)]
    blocks = b"".join(struct.pack("<IHB", 0, len(data), kind) + data for kind, data in parts)
    (tmp_path / "run-ab.wandb").write_bytes(b":W&B\xe1\xbe\x00" + blocks)
    assert found(tmp_path) == [("wandb: train/loss", 0.5, 7)] * 2
