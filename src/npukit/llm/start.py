"""Start the training of a resolved configuration: in this process, or as ranks on one or more machines."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.facts.cards import card as find_card
from npukit.launch.device import Device
from npukit.launch.launch import VISIBLE, count_devices, plan_job, visible_cards
from npukit.launch.launch import start as start_job
from npukit.launch.nodes import DEFAULT_PORT, NodePlan, from_environment
from npukit.launch.run import run
from npukit.launch.variables import variables
from npukit.llm.config.options import Config

MODULE = "npukit.llm.finetune.rank"


def start(config: Config, device: Device, ranks: int, card: str = DEFAULT_CARD) -> NoReturn:
    """Become the training; where torchrun has started this process already, become the rank that it is."""
    check_packages(config)
    command = ["-m", MODULE, str(_write(config))]
    environment = _environment(device, ranks, card)
    if "LOCAL_RANK" in environment:
        run(command, environment)
    nodes = nodes_of(os.environ)
    if ranks > 1 or nodes.nodes > 1:
        start_job(plan_job(command, nodes, device, environment, ranks), environment)
    settings = variables(environment, device in (Device.npu, Device.sim), 1, {})
    run(command, {**environment, **{each.name: each.value for each in settings}})


def count_ranks(wanted: int | None, device: Device, environ: Mapping[str, str], every_card: bool) -> int:
    """How many processes this machine gets: as asked, else one for every visible card."""
    asked = _asked(wanted, environ)
    if asked is None:
        return max(1, count_devices(device, environ)) if every_card and device in (Device.npu, Device.cuda) else 1
    visible = visible_cards(device, environ)
    if visible and asked > len(visible):
        raise NpukitError(
            f"{asked} processes for {len(visible)} visible cards: ask for fewer, or change {VISIBLE[device]}."
        )
    return asked


def _asked(wanted: int | None, environ: Mapping[str, str]) -> int | None:
    """By an option, by torchrun, by ms-swift's variable."""
    text = environ.get("LOCAL_WORLD_SIZE") or environ.get("NPROC_PER_NODE")
    if text and (not text.isdigit() or int(text) < 1):
        raise NpukitError(f"NPROC_PER_NODE is {text!r}: it must be a number of processes.")
    return wanted or (int(text) if text else None)


def asked_world_size(wanted: int | None, environ: Mapping[str, str]) -> int:
    """How many processes the whole job has, where every card of a machine is not used just because it is there."""
    if "LOCAL_RANK" in environ and environ.get("WORLD_SIZE", "").isdigit():
        return int(environ["WORLD_SIZE"])
    return (_asked(wanted, environ) or 1) * nodes_of(environ).nodes


def card_of(device: Device, card: str, environ: Mapping[str, str]) -> tuple[str, bool]:
    """The card to train on and whether it has bf16, as far as that is known without asking the device."""
    if device is Device.sim:
        found = find_card(card)
        return found.name, found.bf16
    if "NPUKIT_SIM_CARD" in environ:
        return environ["NPUKIT_SIM_CARD"], environ.get("NPUKIT_SIM_BF16") != "0"
    return "", True


def nodes_of(environ: Mapping[str, str]) -> NodePlan:
    """ms-swift's NNODES, NODE_RANK and MASTER_ADDR, else what a scheduler says, else this machine alone."""
    nodes = environ.get("NNODES", "1")
    if nodes == "1" or "LOCAL_RANK" in environ:
        return NodePlan() if "LOCAL_RANK" in environ or "NNODES" in environ else from_environment(environ)
    if missing := [name for name in ("NODE_RANK", "MASTER_ADDR") if name not in environ]:
        raise NpukitError(f"NNODES is {nodes}: each machine needs {' and '.join(missing)} too.")
    try:
        rank, port = int(environ["NODE_RANK"]), int(environ.get("MASTER_PORT", DEFAULT_PORT))
        return NodePlan(int(nodes), rank, environ["MASTER_ADDR"], port, None, "NNODES")
    except ValueError:
        raise NpukitError("NNODES, NODE_RANK and MASTER_PORT must be numbers.") from None


def check_packages(config: Config) -> None:
    """What training needs beside npukit itself."""
    needed = ["torch", "transformers", "accelerate"]
    needed += ["peft"] if config.tuning.method == "lora" else []
    needed += ["deepspeed"] if isinstance(config.training.parallel, Path) or "zero" in config.training.parallel else []
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise NpukitError(f"Training needs {' and '.join(missing)}: pip install {' '.join(missing)}.")


def _environment(device: Device, ranks: int, card: str) -> dict[str, str]:
    if device is Device.sim:
        from npukit.simulate import environment

        return environment(ranks, card)
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ""} if device is Device.cpu else dict(os.environ)


def _write(config: Config) -> Path:
    """Where ranks find the configuration; named after its content, so that the ranks of one job may all write it."""
    text = config.model_dump_json(indent=1)
    folder = Path(tempfile.gettempdir()) / f"npukit-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    file = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(text)
    beside.rename(file)
    return file
