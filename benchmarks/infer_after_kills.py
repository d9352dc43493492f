"""`npukit infer` killed 20 times at random moments: is its output that of a run that nobody disturbed?

    python benchmarks/infer_after_kills.py [KILLS]

A tiny model with random weights samples answers of up to 40 tokens to 200 rows on the CPU.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from npukit.inference.start import UseJob, handed_over
from npukit.launch.devices import choose
from npukit.llm.config.use import Use

ROWS = 200
MAKE = Path(__file__).parents[1] / "examples" / "finetune" / "make.py"


def start(use: Use) -> subprocess.Popen[bytes]:
    variables = {**choose("cpu").environment(), **handed_over(UseJob("infer", use)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "npukit.inference.process"]
    return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def answered(part: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in part.glob("rows-*"))


def run_and_kill(use: Use, part: Path, kills: int, pick: random.Random) -> int:
    """Start it again and again; each time kill it once it has answered some more. Returns how often that was."""
    done = 0
    while done < kills:
        process, before = start(use), answered(part)
        wait = before + pick.randint(1, max(1, (ROWS - before) // (kills - done + 1)))
        while answered(part) < wait and process.poll() is None:
            time.sleep(0.005)
        time.sleep(pick.random() / 20)
        process.kill()
        if process.wait() == 0:
            break
        done += 1
        print(f"kill {done}: {answered(part)} of {ROWS} rows answered", flush=True)
    assert start(use).wait() == 0 or (part.parent / "killed.jsonl").exists()
    return done


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([sys.executable, MAKE, folder], check=True, capture_output=True)
        data = folder / "rows.jsonl"
        data.write_text("".join(json.dumps({"prompt": f"Question number {n}?"}) + "\n" for n in range(ROWS)))
        sampling = {"temperature": 1.0, "max_new_tokens": 40}
        tasks = {
            output: Use(
                model={"path": str(folder / "model")},
                data={"input": [str(data)], "output": folder / f"{output}.jsonl"},
                sampling=sampling,
                engine={"max_num_seqs": 8},
            )
            for output in ("whole", "killed")
        }
        assert start(tasks["whole"]).wait() == 0
        done = run_and_kill(tasks["killed"], folder / "killed.jsonl.part", kills, random.Random(0))
        same = (folder / "whole.jsonl").read_bytes() == (folder / "killed.jsonl").read_bytes()
        rows = len((folder / "killed.jsonl").read_text().splitlines())
        print(f"{done} kills, {rows} rows; the same as undisturbed: {same}")
        sys.exit(not same)


if __name__ == "__main__":
    main()
