"""Projects, models, data, checkpoints and dumps that try to run code, to reach outside, or to use everything up.

    python -m benchmarks hostile [--only NAME ...] [--seconds 120] [--gigabytes 6]

Each case is a command over something hostile, in a process with limits on time and memory. A case is good if nothing
was run (a canary is not there), nothing outside its folder was made, changed or removed, it ended within its limits,
and it ended with a result or a sentence, not with a traceback. Prints counts, and fails on any other end.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import pickle
import resource
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from benchmarks.tiny_server import make_example

CANARY = "canary"  # in the folder beside the case's own
# What does not end as it should, and why that stays.
KNOWN = {
    "a_template_without_end": "a chat template is a program: it cannot leave Jinja's sandbox, but it may not end",
}
CASES: dict[str, tuple[str, Callable[[Path], list[str]]]] = {}


def case(kind: str) -> Callable[[Callable[[Path], list[str]]], Callable[[Path], list[str]]]:
    """A function that makes something hostile in a folder, and returns the command to try on it."""

    def register(make: Callable[[Path], list[str]]) -> Callable[[Path], list[str]]:
        CASES[make.__name__] = (kind, make)
        return make

    return register


def touching(folder: Path) -> str:
    return f"open({str(folder.parent / CANARY)!r}, 'w').close()"


class Payload:
    """Runs code when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.code = touching(folder)

    def __reduce__(self) -> Any:
        return exec, (self.code,)


# Projects


@case("project")
def code_at_import(folder: Path) -> list[str]:
    for name in ("setup.py", "conftest.py", "sitecustomize.py", "__init__.py", "torch.py", "npukit.py"):
        (folder / name).write_text(f"import torch\n{touching(folder)}\nx.cuda()\n")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "setup"\nbackend-path = ["."]\n'
    )
    return ["migrate", str(folder), "--in-place"]


@case("project")
def git_runs_programs(folder: Path) -> list[str]:
    (folder / ".git").mkdir()
    run = f"touch {folder.parent / CANARY}"
    (folder / ".git" / "config").write_text(
        f'[core]\nfsmonitor = "{run}"\nsshCommand = "{run}"\n[filter "x"]\nclean = "{run}"\n'
    )
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".gitattributes").write_text("* filter=x\n")
    (folder / "a.py").write_text("import torch\nx.cuda()\n")
    return ["migrate", str(folder), "--in-place"]


@case("project")
def links_that_lead_outside(folder: Path) -> list[str]:
    (folder.parent / "outside" / "mine.py").write_text("import torch\nx.cuda()\n")
    (folder / "a.py").symlink_to(folder.parent / "outside" / "mine.py")
    (folder / "below").symlink_to(folder.parent / "outside")
    (folder / "loop").symlink_to(folder)
    return ["migrate", str(folder), "--in-place", "--allow-dirty"]


@case("project")
def a_journal_of_theirs(folder: Path) -> list[str]:
    journal = folder / ".npukit" / "migrations" / "0001"
    journal.mkdir(parents=True)
    (journal / "0").write_text("theirs")
    (journal / "changes.json").write_text(json.dumps([{"file": "../outside/kept", "original": "0", "new": ""}]))
    return ["migrate", str(folder), "--undo"]


@case("project")
def deep_nesting(folder: Path) -> list[str]:
    (folder / "a.py").write_text("import torch\nx = " + "(" * 100_000 + "x.cuda()" + ")" * 100_000 + "\n")
    (folder / "b.py").write_text("import torch\nx = " + "-" * 100_000 + "x.cuda()\n")
    (folder / "c.ipynb").write_text('{"cells": ' + "[" * 100_000)
    (folder / "d.yaml").write_text("cuda: " + "[" * 50_000)
    (folder / "e.json").write_text("[" * 500_000 + '"cuda"')
    (folder / "f.py").write_text(
        "import torch\n" + "".join(f"{' ' * n}if cuda:\n" for n in range(99)) + " " * 99 + "x.cuda()\n"
    )
    return ["analyze", str(folder)]


@case("project")
def laughing_yaml(folder: Path) -> list[str]:
    lines = ["a0: &a0 [cuda, cuda]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    (folder / "a.yaml").write_text("\n".join(lines) + "\n")
    return ["analyze", str(folder)]


@case("project")
def texts_for_slow_patterns(folder: Path) -> list[str]:
    (folder / "a.sh").write_text(
        "pip install " + "a" * 300_000 + "\n" + "python -m torch.distributed.launch " + " \\\n" * 50_000
    )
    (folder / "requirements.txt").write_text("torch" + "=" * 300_000 + "\n" + "a." * 200_000 + "\n")
    (folder / "Dockerfile").write_text("FROM " + "nvidia/" * 50_000 + "\nRUN " + "&& " * 100_000)
    (folder / "a.py").write_text(
        "import torch\nx = '" + "cuda:" * 200_000 + "'\nprint('" + "%s" * 200_000 + "' % torch.cuda)\n"
    )
    return ["analyze", str(folder)]


@case("project")
def large_files(folder: Path) -> list[str]:
    (folder / "a.py").write_bytes(b"import torch\n" + b"x.cuda()\n" * 20_000_000)
    with (folder / "b.py").open("wb") as sparse:
        sparse.truncate(20 << 30)
    return ["analyze", str(folder)]


@case("project")
def pipes_and_devices(folder: Path) -> list[str]:
    os.mkfifo(folder / "a.py")
    os.mkfifo(folder / "pyproject.toml")
    (folder / "b.py").write_text("import torch\nx.cuda()\n")
    return ["migrate", str(folder), "--output", str(folder / "migrated")]


@case("log")
def a_log_without_lines(folder: Path) -> list[str]:
    (folder / "log").write_bytes(b"EI0002 error code is 507015 " * 4_000_000)
    return ["explain", str(folder / "log")]


# Models


def model(folder: Path, **config: Any) -> Path:
    """The folder of a tiny model, and more in its configuration."""
    import shutil

    made = folder / "model"
    shutil.copytree(TINY[0], made)
    plain = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**plain, **config}))
    return made


TINY: list[Path] = []


def asked(folder: Path, made: Path) -> list[str]:
    (folder / "rows.jsonl").write_text('{"prompt": "Hi"}\n')
    words = ["--max-tokens", "2", "--output", str(folder / "answers.jsonl"), "--device", "cpu"]
    return ["infer", str(made), str(folder / "rows.jsonl"), *words]


@case("model")
def code_of_its_own(folder: Path) -> list[str]:
    made = model(folder, auto_map={"AutoModelForCausalLM": "modeling.Model", "AutoConfig": "modeling.Config"})
    (made / "modeling.py").write_text(touching(folder))
    return asked(folder, made)


@case("model")
def pickled_weights(folder: Path) -> list[str]:
    import torch

    made = model(folder)
    (made / "model.safetensors").unlink()
    torch.save({"lm_head.weight": Payload(folder)}, made / "pytorch_model.bin")
    return asked(folder, made)


@case("model")
def a_template_that_reaches_python(folder: Path) -> list[str]:
    made = model(folder)
    reach = f"cycler.__init__.__globals__.os.system('touch {folder.parent / CANARY}')"
    (made / "chat_template.jinja").write_text("{{ " + reach + " }}{{ messages.__class__.__mro__ }}")
    return asked(folder, made)


@case("model")
def a_template_without_end(folder: Path) -> list[str]:
    made = model(folder)
    (made / "chat_template.jinja").write_text(
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    )
    return asked(folder, made)


@case("model")
def a_header_that_promises_much(folder: Path) -> list[str]:
    made = model(folder)
    (made / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    return asked(folder, made)


@case("model")
def tensors_beyond_the_file(folder: Path) -> list[str]:
    made = model(folder)
    header = json.dumps(
        {"lm_head.weight": {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 1 << 42]}}
    ).encode()
    (made / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return ["export", str(made), "--output", str(folder / "out")]


@case("model")
def a_configuration_without_measure(folder: Path) -> list[str]:
    return asked(folder, model(folder, hidden_size=1 << 40, vocab_size=1 << 40, num_hidden_layers=1 << 30))


@case("model")
def parts_that_are_elsewhere(folder: Path) -> list[str]:
    made = model(folder)
    (made / "model.safetensors").rename(made / "part")
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "../../outside/kept", "x": "/etc/passwd"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return ["export", str(made), "--output", str(folder / "out")]


@case("model")
def an_adapter_of_code(folder: Path) -> list[str]:
    made = folder / "adapter"
    made.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": str(TINY[0]), "r": 1 << 40, "target_modules": "(a+)+$"}
    (made / "adapter_config.json").write_text(json.dumps(config))
    (made / "adapter_model.bin").write_bytes(pickle.dumps(Payload(folder)))
    return ["export", str(made), "--output", str(folder / "out")]


# Data and checkpoints


def trained(folder: Path, **given: str) -> list[str]:
    words = {"model": str(TINY[0]), "output_dir": str(folder / "run"), "max_steps": "2", "device": "cpu", **given}
    return ["sft", *(word for name, value in words.items() for word in (f"--{name}", value))]


@case("data")
def a_row_without_end(folder: Path) -> list[str]:
    (folder / "rows.jsonl").write_text('{"instruction": "' + "a" * 100_000_000 + '", "output": "b"}\n')
    return trained(folder, dataset=str(folder / "rows.jsonl"))


@case("data")
def nested_rows(folder: Path) -> list[str]:
    (folder / "rows.json").write_text("[" * 1_000_000)
    return trained(folder, dataset=str(folder / "rows.json"))


@case("data")
def a_script_beside_the_data(folder: Path) -> list[str]:
    data = folder / "rows"
    data.mkdir()
    (data / "rows.py").write_text(touching(folder))
    (data / "dataset_infos.json").write_text("{}")
    return trained(folder, dataset=str(data))


@case("data")
def a_parquet_that_is_none(folder: Path) -> list[str]:
    (folder / "rows.parquet").write_bytes(b"PAR1" + os.urandom(4096) + struct.pack("<I", 1 << 31) + b"PAR1")
    return trained(folder, dataset=str(folder / "rows.parquet"))


@case("data")
def a_cell_without_end(folder: Path) -> list[str]:
    (folder / "rows.csv").write_text('instruction,output\n"' + "a,\n" * 20_000_000)
    return trained(folder, dataset=str(folder / "rows.csv"))


@case("checkpoint")
def a_checkpoint_of_code(folder: Path) -> list[str]:
    part = folder / "run" / "checkpoint-1"
    part.mkdir(parents=True)
    (part / "rank-0.pt").write_bytes(pickle.dumps(Payload(folder)))
    digest = hashlib.sha256((part / "rank-0.pt").read_bytes()).hexdigest()
    contents = {"step": 1, "run": {}, "files": {"rank-0.pt": digest, "../../../outside/kept": digest}}
    (part / "checkpoint.json").write_text(json.dumps(contents))
    (folder / "rows.jsonl").write_text('{"instruction": "a", "output": "b"}\n' * 8)
    return trained(folder, dataset=str(folder / "rows.jsonl"))


@case("dump")
def a_dump_of_code(folder: Path) -> list[str]:
    for name in ("left", "right"):
        tensors = folder / name / "step0" / "rank0" / "dump_tensor_data"
        tensors.mkdir(parents=True)
        (tensors / "a.pt").write_bytes(pickle.dumps(Payload(folder)))
        row = {
            "type": "torch.Tensor",
            "dtype": "torch.float32",
            "shape": [1],
            "data_name": "../../../../../outside/kept",
        }
        rows = {"Module.a.Linear.forward.0": {"output": [row, {**row, "data_name": "a.pt"}]}}
        (tensors.parent / "dump.json").write_text(json.dumps({"task": "tensor", "level": "L0", "data": rows}))
    return ["precision", "compare", str(folder / "left"), str(folder / "right")]


@case("dump")
def weights_of_code(folder: Path) -> list[str]:
    for name in ("left.bin", "right.pt"):
        (folder / name).write_bytes(pickle.dumps({"a": Payload(folder)}))
    return ["precision", "weights", str(folder / "left.bin"), str(folder / "right.pt")]


@case("dump")
def a_profile_that_is_none(folder: Path) -> list[str]:
    made = folder / "a_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    made.mkdir(parents=True)
    (made / "trace_view.json").write_text("[" + '{"name": "' * 100_000)
    (made / "kernel_details.csv").write_text("Name,Duration(us)\n" + "a," * 1_000_000)
    (made / "ascend_pytorch_profiler_0.db").write_bytes(b"SQLite format 3\0" + os.urandom(10_000))
    return ["advise", str(folder / "a_ascend_pt")]


def state(folder: Path) -> dict[str, str]:
    """What is below a folder, and its content."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "" for path in folder.rglob("*")
    }


def try_case(name: str, seconds: float, gigabytes: int) -> str:
    """How it ended: good, or what went wrong."""
    with tempfile.TemporaryDirectory() as made:
        around = Path(made)
        folder, outside = around / "case", around / "outside"
        for place in (folder, outside, around / "home", around / "tmp"):
            place.mkdir()
        (outside / "kept").write_text("kept")
        words = CASES[name][1](folder)
        before = state(outside)
        output = around / "output"
        child = os.fork()
        if child == 0:
            become(words, around, output, seconds, gigabytes)
        status = wait(child, 10 * seconds)
        text = output.read_text(errors="replace") if output.exists() else ""
        if (around / CANARY).exists():
            return "CODE WAS RUN"
        if state(outside) != before:
            return "REACHED OUTSIDE"
        if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
            return f"NO END within {seconds:.0f} s of CPU time"
        if os.WIFSIGNALED(status) or "MemoryError" in text:
            return f"USED EVERYTHING UP: status {status}: {text[-200:]}"
        if "Traceback" in text:
            return f"TRACEBACK: {text[-300:]}"
        return (
            f"good ({os.waitstatus_to_exitcode(status)}): {text.strip().splitlines()[-1][:110] if text.strip() else ''}"
        )


def become(words: list[str], around: Path, output: Path, seconds: float, gigabytes: int) -> None:
    """Be npukit, with limits; does not return."""
    os.setsid()
    os.chdir(around / "home")
    os.environ.update(HOME=str(around / "home"), TMPDIR=str(around / "tmp"), NPUKIT_CACHE=str(around / "cache"))
    os.environ.update(HF_HUB_OFFLINE="1")
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    os.dup2(1, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))  # holds on a busy machine, too
    resource.setrlimit(resource.RLIMIT_DATA, (gigabytes << 30, gigabytes << 30))
    os.execv(sys.executable, [sys.executable, "-P", "-m", "npukit", *words])


def wait(child: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def make_tiny(folder: Path) -> Path:

    make_example(folder)
    return folder / "model"


def main(
    only: tuple[str, ...] = (), seconds: Annotated[float, "of CPU time, for one case"] = 120, gigabytes: int = 6
) -> None:
    counts: collections.Counter[tuple[str, bool]] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        TINY.append(make_tiny(Path(folder)))
        for name, (kind, _) in CASES.items():
            if only and name not in only and kind not in only:
                continue
            ended = try_case(name, seconds, gigabytes)
            if name in KNOWN and not ended.startswith("good"):
                ended = f"good, as is known: {ended}: {KNOWN[name]}"
            counts[kind, ended.startswith("good")] += 1
            print(f"{kind:<11}{name:<34}{ended}", flush=True)
    for kind in dict.fromkeys(kind for kind, _ in counts):
        print(f"{kind}: {counts[kind, True]} good, {counts[kind, False]} not")
    sys.exit(any(number for (_, good), number in counts.items() if not good))
