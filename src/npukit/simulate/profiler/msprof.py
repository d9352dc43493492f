"""The simulated CANN's `msprof`, which torch_npu's profiler calls to export what was recorded."""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from npukit.simulate.profiler import tables
from npukit.simulate.profiler.database import write_database
from npukit.simulate.profiler.recording import Recording, read_recording
from npukit.simulate.profiler.timeline import trace_events

# torch_npu polls for the files, but gives up once nothing else runs: a real msprof takes seconds.
NOTICED = 1.0


def export_text(recording: Recording, folder: Path, stamp: str) -> None:
    """Write mindstudio_profiler_output, the timeline first, because torch_npu continues once it sees a CSV file."""
    out = folder / "mindstudio_profiler_output"
    out.mkdir(exist_ok=True)
    _write(out / f"msprof_{stamp}.json", json.dumps(trace_events(recording)))
    for name, rows in (
        ("op_statistic", tables.op_statistic(recording)),
        ("api_statistic", tables.api_statistic(recording)),
        ("task_time", tables.task_time(recording)),
        ("op_summary", tables.op_summary(recording)),
    ):
        _write_csv(out / f"{name}_{stamp}.csv", rows)


def analyze(recording: Recording, folder: Path) -> None:
    """Write analyze/communication.json, which describes the collectives."""
    out = folder / "analyze"
    out.mkdir(exist_ok=True)
    if collectives := tables.communication(recording.tasks):
        _write(out / "communication.json", json.dumps(collectives))


def _write(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    unfinished = path.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        if rows:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser("msprof", description="Export what the simulated NPU's profiler recorded.")
    parser.add_argument("--export", choices=["on", "off"], default="off", help="write csv and json files")
    parser.add_argument("--analyze", choices=["on", "off"], default="off", help="write communication.json")
    parser.add_argument("--type", choices=["text", "db"], default="text", help="what kind of files")
    parser.add_argument("--output", required=True, type=Path, help="the PROF_ folder")
    options = parser.parse_args()
    if not (options.output / "host" / "simulated.jsonl").exists():
        sys.exit(f"msprof (simulated): {options.output} is not a recording of the simulated NPU.")
    cube, vector = os.environ.get("NPUKIT_SIM_CORES", "20,40").split(",")
    recording = read_recording(options.output, vector_cores=cube != vector)
    stamp = re.sub(r"\D", "", options.output.name.split("_")[2])
    if options.export == "on" and options.type == "db":
        card = os.environ.get("NPUKIT_SIM_SOC", "")
        write_database(recording, options.output / f"msprof_{stamp}.db", card)
    elif options.export == "on":
        export_text(recording, options.output, stamp)
    if options.analyze == "on":
        analyze(recording, options.output)
    if options.export == "on":
        time.sleep(NOTICED)


if __name__ == "__main__":
    main()
