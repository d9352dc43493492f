"""How often `npukit verify` notices a changed computation, and how often it sees one where there is none.

    python -m benchmarks verify_planted [--only SCRIPT...]

Ten CUDA projects of different styles are migrated. In 30 copies one change of the mathematics is planted after the
migration; 30 more are left as migrate wrote them, in both styles of code. Originals run on the CPU in place of CUDA,
migrated projects on simulated NPUs, and the comparison is that of verify.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks import ROOT

from npukit.launch.devices import choose
from npukit.migrate.goal import Goal, Style
from npukit.migrate.journal import write_copy
from npukit.migrate.migration import migrate
from npukit.verify.compare import Figures, Tolerance, compare, worth_comparing
from npukit.verify.side import Side

_UNCHANGED = "as migrated"
EXAMPLES = ROOT / "examples"


class Project(NamedTuple):
    folder: str
    script: str
    plants: tuple[tuple[str, str, str], ...]  # what it is, before, after
    devices: int = 1  # that the script uses by itself


PROJECTS = (
    Project("cuda_project", "train.py", (
        ("another activation", "nn.GELU()", "nn.GELU(approximate='tanh')"),
        ("dropout kept on at half its rate", "dropout: float = 0.1", "dropout: float = 0.05"),
        ("classes weighted otherwise", "counts.clamp(min=1)", "counts.clamp(min=1).sqrt()"),
    )),
    Project("cuda/styles", "cnn.py", (
        ("dropout of elements, not of channels", "nn.Dropout2d(0.25)", "nn.Dropout(0.25)"),
        ("learning rate", "lr=3e-3", "lr=3.1e-3"),
        ("average instead of maximum pooling", "F.max_pool2d", "F.avg_pool2d"),
    )),
    Project("cuda", "nanogpt.py", (
        ("no causal mask", "is_causal=True", "is_causal=False"),
        ("second moment's decay", "betas=(0.9, 0.95)", "betas=(0.9, 0.99)"),
        ("another clipping norm", "model.parameters(), 1.0)", "model.parameters(), 0.5)"),
    )),
    Project("cuda/styles", "gan.py", (
        ("label smoothing gone", "0.9, device", "1.0, device"),
        ("generator told to be found out", "torch.ones(64, 1,", "torch.zeros(64, 1,"),
        ("slope of the activation", "nn.LeakyReLU(0.2), nn.Linear(32, 1)", "nn.LeakyReLU(0.1), nn.Linear(32, 1)"),
    )),
    Project("cuda/styles", "vae.py", (
        ("divergence weighted less", "+ kl", "+ 0.99 * kl"),
        ("standard deviation without the half", "0.5 * logvar", "logvar"),
        ("weight decay", "weight_decay=0.05", "weight_decay=0.01"),
    )),
    Project("cuda/styles", "rnn.py", (
        ("padding counts", "CrossEntropyLoss(ignore_index=0)", "CrossEntropyLoss()"),
        ("schedule decays later", "StepLR(self.optimizer, 4", "StepLR(self.optimizer, 5"),
        ("Nesterov momentum", "momentum=0.9", "momentum=0.9, nesterov=True"),
    )),
    Project("cuda/styles", "policy.py", (
        ("discount", "gamma = 0.95", "gamma = 0.951"),
        ("returns not normalised", "(returns.std() + 1e-6)", "1.0"),
        ("entropy's sign", "- 0.01 * torch", "+ 0.01 * torch"),
    )),
    Project("cuda/styles", "sample.py", (
        ("temperature", "temperature=0.8", "temperature=1.0"),
        ("attention not scaled", " / (c // self.heads) ** 0.5", ""),
        ("mask from the other side", ".tril()", ".triu()"),
    )),
    Project("cuda/styles", "spawned.py", (
        ("gradients of accumulated steps not halved", ".mean() / 2", ".mean()"),
        ("gradients cleared before the step", "        optimizer.step()\n        optimizer.zero_grad()",
         "        optimizer.zero_grad()\n        optimizer.step()"),
        ("sum instead of mean", ".pow(2).mean()", ".pow(2).sum()"),
    ), 2),
    Project("cuda/styles", "contrast.py", (
        ("one direction of the loss twice", "logits.t(), labels", "logits, labels"),
        ("decay of the norms' weights", '"weight_decay": 0.0', '"weight_decay": 0.2'),
        ("average of the weights", "mul_(0.9).add_(fast, alpha=0.1)", "mul_(0.5).add_(fast, alpha=0.5)"),
    )),
)  # fmt: skip


def copies(project: Project, work: Path) -> Iterator[tuple[str, Path, dict[str, str]]]:
    """The migrated copies, with variables for their runs: three as they are, three with a plant."""
    source = work / "original"
    for style in Style:
        write_copy(migrate(source, Goal(style)), source, work / style.value)
        yield f"{_UNCHANGED}, {style.value}", work / style.value, {}
    # Sums in another order, as other kernels have them, are no change of the mathematics.
    yield f"{_UNCHANGED}, portable, on one thread", work / "portable", {"OMP_NUM_THREADS": "1"}
    for number, (what, before, after) in enumerate(project.plants):
        folder = work / f"plant{number}"
        shutil.copytree(work / list(Style)[number % 2].value, folder)
        files = [file for file in folder.glob("*.py") if before in file.read_text()]
        assert files, f"{project.script}: {before!r} is gone"
        for file in files:
            file.write_text(file.read_text().replace(before, after, 1))
        yield what, folder, {}


def figures(side: Side, project: Project, work: Path) -> Figures:
    run, logged = side.run(["python", project.script], 1, work)
    assert run.exit_code == 0, f"{project.script} in {side.folder.name}: {run.output}"
    return worth_comparing(logged)


def main(only: Annotated[tuple[str, ...], "only the scripts of these names"] = ()) -> None:
    caught, planted, alarms, unchanged = 0, 0, 0, 0
    for project in PROJECTS:
        if only and project.script not in only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            shutil.copytree(EXAMPLES / project.folder, work / "original", ignore=shutil.ignore_patterns("styles"))
            expected = figures(Side.original(work / "original"), project, work / "run")
            for number, (what, copy, variables) in enumerate(copies(project, work)):
                side = Side.migrated(copy, choose("sim", project.devices), work / "trace.json")
                side = replace(side, environment={**side.environment, **variables})
                compared, divergence = compare(expected, figures(side, project, work / f"run{number}"), Tolerance())
                is_plant = not what.startswith(_UNCHANGED)
                planted, caught = planted + is_plant, caught + (is_plant and divergence is not None)
                unchanged, alarms = unchanged + (not is_plant), alarms + (not is_plant and divergence is not None)
                verdict = f"{divergence.kind} {divergence.name} {divergence.number}" if divergence else "same"
                largest = max((series.largest_difference for series in compared), default=0.0)
                print(f"{project.script:<12} {what:<42} {verdict:<24} largest difference {largest:.0e}", flush=True)
    print(f"caught {caught} of {planted} planted changes; called different: {alarms} of {unchanged} unchanged")
