"""Three tasks, done with the commands that `npukit skill` gives an agent, taken from its text.

    python -m benchmarks skill_tasks

Port examples/cuda_project; fine-tune from a LLaMA-Factory YAML; find out why a run on two NPUs fails with ERR02200.
The commands are the lines of the written skill, with names in capitals replaced; each must end as the skill says.
Everything runs on the CPU and simulated NPUs. Where `agentskills` (pip install skills-ref) is installed, the skill is
validated as well.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import ROOT
from benchmarks.tiny_server import make_example

LLAMA_FACTORY = """
model_name_or_path: model
stage: sft
do_train: true
finetuning_type: lora
dataset_dir: data
dataset: cards
template: qwen
cutoff_len: 256
output_dir: run
per_device_train_batch_size: 4
max_steps: 4
learning_rate: 1.0e-3
"""
FAILING = """
import os, time, torch, torch.distributed as dist

rank = int(os.environ["RANK"])
torch.npu.set_device(rank)
dist.init_process_group("hccl")
if rank == 0:  # the mistake: the other rank never comes to this collective
    dist.all_reduce(torch.ones(1, device="npu"))
    torch.npu.synchronize()
else:
    time.sleep(60)
"""


class Skill:
    """The written skill: its commands, found by their first words."""

    def __init__(self, folder: Path) -> None:
        pages = [file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.md"))]
        commands: list[str] = re.findall(r"^npukit [^\n]+$|(?<=`)npukit [^`\n]+(?=`)", "\n".join(pages), re.MULTILINE)
        self.commands = [command for command in commands if command != "npukit"]

    def run(self, begins: str, names: dict[str, str], expected: int = 0) -> str:
        """Run the first command that begins so, with the capitals replaced; returns what it printed."""
        command = next((known for known in self.commands if known.startswith(begins)), "")
        if not command:
            sys.exit(f"the skill has no command that begins with {begins}")
        for name, value in names.items():
            command = command.replace(name, value)
        ended = subprocess.run([sys.executable, "-m", *shlex.split(command)], capture_output=True, text=True)
        print(f"{ended.returncode}  {command}", flush=True)
        if ended.returncode != expected:
            sys.exit(f"{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
        return ended.stdout


def port(skill: Skill) -> None:
    names = {"PROJECT": "project", "PORTED": "ported", "train.py": "train.py --steps 10"}
    shutil.copytree(ROOT / "examples" / "cuda_project", "project")
    skill.run("npukit analyze PROJECT", names)
    skill.run("npukit migrate PROJECT --output", names)
    skill.run("npukit verify PROJECT PORTED", names)
    skill.run("npukit analyze PORTED", names)


def fine_tune(skill: Skill) -> None:
    make_example(Path())
    Path("data/dataset_info.json").write_text('{"cards": {"file_name": "cards.jsonl"}}')
    Path("sft.yaml").write_text(LLAMA_FACTORY)
    Path("rows.jsonl").write_text("\n".join(Path("data/cards.jsonl").read_text().splitlines()[:4]))
    names = {"CONFIG.yaml": "sft.yaml", "RUN": "run"}
    skill.run("npukit train CONFIG.yaml --dry-run", names)
    skill.run("npukit plan CONFIG.yaml --card", names)
    skill.run("npukit train CONFIG.yaml --device sim", names)
    skill.run("npukit infer RUN", names)
    skill.run("npukit export RUN", names)


def explain(skill: Skill) -> None:
    Path("train.py").write_text(FAILING)
    os.environ["HCCL_CONNECT_TIMEOUT"] = "5"
    skill.run("npukit launch --devices 2 --device sim train.py", {}, expected=1)
    answer = json.loads(skill.run("npukit explain npukit-logs", {"npukit-logs": "npukit-logs --json"}))
    codes = [row["code"] for row in answer["result"]["explanations"]]
    print(f"   {', '.join(codes)}")
    if codes[0] != "EI0015" or "ERR02200" not in codes:
        sys.exit("the first explanation should be EI0015, and ERR02200 its consequence")


def main() -> None:
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        subprocess.run([sys.executable, "-m", "npukit", "skill", "--output", "skills"], check=True)
        if validator := shutil.which("agentskills"):
            subprocess.run([validator, "validate", "skills/npukit"], check=True)
        skill = Skill(Path("skills/npukit"))
        for task in (port, fine_tune, explain):
            print(f"==> {task.__name__}", flush=True)
            Path(task.__name__).mkdir()
            os.chdir(task.__name__)
            task(skill)
            os.chdir(work)
        os.chdir(home)
