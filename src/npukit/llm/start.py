"""Start the training of a resolved configuration: in this process, or as ranks on one or more machines."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.facts.cards import card as find_card
from npukit.launch.device import Device
from npukit.launch.launch import count_devices, plan_job
from npukit.launch.launch import start as start_job
from npukit.launch.nodes import DEFAULT_PORT, NodePlan, from_environment
from npukit.launch.run import run
from npukit.launch.variables import variables
from npukit.llm.config import Config

MODULE = "npukit.llm.train"


def start(config: Config, device: Device, ranks: int, card: str = DEFAULT_CARD) -> NoReturn:
    """Become the training; where torchrun has started this process already, become the rank that it is."""
    command = ["-m", MODULE, str(_write(config))]
    environment = _environment(device, ranks, card)
    if "LOCAL_RANK" in environment:
        run(command, environment)
    nodes = nodes_of(os.environ)
    if ranks > 1 or nodes.nodes > 1:
        start_job(plan_job(command, nodes, device, environment, ranks), environment)
    settings = variables(environment, device in (Device.npu, Device.sim), 1, {})
    run(command, {**environment, **{each.name: each.value for each in settings}})


def asked_ranks(wanted: int | None, environ: Mapping[str, str]) -> int:
    """How many processes on this machine were asked for: by an option, torchrun or NPROC_PER_NODE; else one."""
    text = environ.get("LOCAL_WORLD_SIZE") or environ.get("NPROC_PER_NODE") or "1"
    if not text.isdigit() or int(text) < 1:
        raise NpukitError(f"NPROC_PER_NODE is {text!r}: it must be a number of processes.")
    return wanted or int(text)


def count_ranks(wanted: int | None, device: Device, environ: Mapping[str, str], every_card: bool) -> int:
    """How many processes this machine gets: as asked, else one for every visible card."""
    asked = wanted or {"LOCAL_WORLD_SIZE", "NPROC_PER_NODE"} & environ.keys()
    if asked or not every_card or device not in (Device.npu, Device.cuda):
        return asked_ranks(wanted, environ)
    return count_devices(device, environ)


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
    if not (nodes := environ.get("NNODES")):
        return from_environment(environ)
    try:
        rank, port = int(environ.get("NODE_RANK", 0)), int(environ.get("MASTER_PORT", DEFAULT_PORT))
        return NodePlan(int(nodes), rank, environ.get("MASTER_ADDR", "127.0.0.1"), port, None, "NNODES")
    except ValueError:
        raise NpukitError("NNODES, NODE_RANK and MASTER_PORT must be numbers.") from None


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
