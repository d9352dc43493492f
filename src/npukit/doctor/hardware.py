"""Checks of the cards, the driver and the device files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npukit.doctor.check import Check, skip
from npukit.doctor.problems import Trouble, trouble
from npukit.facts.cards import card_of
from npukit.facts.versions import within
from npukit.machine.cpus import numbers_of
from npukit.machine.found import MachineState
from npukit.machine.npu_smi import IDLE_MEMORY_MIB, Chip
from npukit.machine.npus import MANAGEMENT_FILES
from npukit.report import Severity
from npukit.report.report import counted

HEALTHY = ("OK", "NA", "")  # npu-smi reports no health for some cards, which is no fault


def npus(state: MachineState) -> Check:
    """Check that the machine has NPUs."""
    if not state.has_npus:
        instead = f"GPUs: {', '.join(state.gpus)}" if state.gpus else "and no GPUs"
        says = f"none, {instead}"
        return Check("NPUs", says, (trouble("NPK901"),))
    names = Counter(chip.name for chip in state.chips if chip.name)
    if names:
        says = ", ".join(f"{count} x {name}" for name, count in names.items())
        memory = state.chips[0].memory_total_mib
        says += f" with {memory / 1024:.0f} GiB" if memory and len(names) == 1 else ""
    else:
        says = f"{state.npus_on_bus or len(state.card_files)}, of unknown type"
    if state.simulated:
        says += ", simulated"
    elif state.in_container:
        says += ", in a container"
    return Check("NPUs", says, tuple(_limits(state)))


def _limits(state: MachineState) -> Iterator[Trouble]:
    """Yield what the visible cards cannot do, such as training or bf16."""
    for name in sorted({chip.name for chip in state.visible_chips if chip.name}):
        card = card_of(name)
        if card and not card.trains:
            yield _inference_only(state, name)
        elif card and not card.bf16:
            yield trouble("NPK916", f"{name} does not support bf16")


def _inference_only(state: MachineState, name: str) -> Trouble:
    what = f"{name} is a card for inference and cannot train"
    others = [
        str(number)
        for number, chip in enumerate(state.chips)
        if chip in state.visible_chips and (card := card_of(chip.name)) and card.trains
    ]
    if not others:
        return trouble("NPK917", what)
    command = f"export ASCEND_RT_VISIBLE_DEVICES={','.join(others)}"
    remedy = f"Leave it out: `{command}`."
    return trouble("NPK917", what, remedy, commands=(command,), severity=Severity.warning)


def driver(state: MachineState) -> Check:
    """Check that there is a driver, and that the firmware fits it."""
    if state.simulated:
        return skip("Driver", "simulated, needs none")
    if not state.has_npus:
        return skip("Driver", "no cards to drive")
    if state.driver is None:
        if state.card_files and state.in_container:
            remedy = "Start the container with the driver mounted: `npukit container` prints the command."
            return Check(
                "Driver", "not mounted in this container", (trouble("NPK902", "The driver is not mounted", remedy),)
            )
        return Check("Driver", "not found", (trouble("NPK902"),))
    firmware = state.driver.firmware or state.board.get("Firmware Version", "")
    version = state.driver.version or state.smi.version or "of unknown version"
    says = version + (f", firmware {firmware}" if firmware else "")
    return Check("Driver", says, tuple(_firmware(state, firmware)))


def _firmware(state: MachineState, firmware: str) -> Iterator[Trouble]:
    assert state.driver is not None
    limits = state.driver.firmware_limits
    fits = within(firmware, limits) if firmware and limits else None
    if fits is False:
        evidence = f"firmware {firmware}, driver {state.driver.version} wants {limits}"
        yield trouble("NPK903", evidence=evidence)
    elif state.board.get("Compatibility", "OK").upper() == "NOK":
        yield trouble("NPK903", evidence="npu-smi says Compatibility: NOK")


def device_files(state: MachineState) -> Check:
    """Check that the device files exist and that this user can open them."""
    if state.simulated or not state.has_npus:
        return skip("Device files", "simulated, needs none" if state.simulated else "none expected")
    if state.driver is None and not state.device_files:
        return skip("Device files", "they come with the driver")
    names = {file.name for file in state.device_files}
    troubles = []
    refused = [file.name for file in state.device_files if not file.usable]
    if state.driver and not state.card_files:
        what = "No card has a device file" + (" in this container" if state.in_container else "")
        troubles.append(trouble("NPK906", what, evidence="there is no /dev/davinci0"))
    elif state.card_files:
        missing = [name for name in (*state.held_by_container, *MANAGEMENT_FILES) if name not in names]
        troubles += [trouble("NPK906", f"/dev/{name} is missing") for name in missing]
    if refused:
        command = "sudo usermod -a -G HwHiAiUser $USER"
        remedy = f"Run `{command}` and log in again."
        what = f"This user cannot open {_listed(refused)}"
        troubles.append(trouble("NPK905", what, remedy, commands=(command,)))
    return Check(
        "Device files", f"{counted(len(state.card_files), 'card')}, {counted(len(names), 'file')}", tuple(troubles)
    )


def _listed(names: list[str]) -> str:
    shown = ", ".join(f"/dev/{name}" for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def health(state: MachineState) -> Check:
    """Check that npu-smi works and reports all cards as healthy."""
    if not state.has_npus:
        return skip("Health", "no cards")
    if not state.chips:
        if not state.smi_installed:
            return skip("Health", "npu-smi is not available")
        if state.smi_late:
            return skip("Health", "npu-smi took longer than a second; `npukit devices` waits for it")
        return Check("Health", "unknown", (trouble("NPK904", evidence=state.smi_failure),))
    ill = [chip for chip in state.chips if chip.health not in HEALTHY]
    hottest = max((chip.temperature_c for chip in state.chips if chip.temperature_c is not None), default=None)
    says = f"{len(state.chips) - len(ill)} of {len(state.chips)} healthy"
    says += f"; hottest {hottest:.0f} °C" if hottest else ""
    return Check("Health", says, tuple(_ill(chip, chip in state.visible_chips) for chip in ill))


def _ill(chip: Chip, visible: bool) -> Trouble:
    reset = f"npu-smi set -t reset -i {chip.npu} -c {chip.chip}"
    remedy = (
        f"Exclude the card for now; see `npu-smi info -t health -i {chip.npu} -c {chip.chip}`. "
        f"When nothing runs on it, reset it with `{reset}`."
    )
    severity = Severity.warning if chip.health == "Warning" else None
    if not visible:
        severity = Severity.note  # this shell's programs do not use the card
    return trouble("NPK907", f"NPU {chip.npu} chip {chip.chip} reports {chip.health}", remedy, severity=severity)


def in_use(state: MachineState) -> Check:
    """Check that no other process uses the cards."""
    if not state.chips:
        return skip("In use", "no cards" if not state.has_npus else "unknown")
    busy = [chip for chip in state.visible_chips if is_busy(state, chip)]
    free = [index for index, chip in enumerate(state.chips) if chip in state.visible_chips and chip not in busy]
    says = f"{len(free)} of {len(state.visible_chips)} free"
    command = f"export ASCEND_RT_VISIBLE_DEVICES={','.join(map(str, free))}" if free else ""
    remedy = f"Use the free ones: `{command}`; or stop the process if it is a leftover of yours." if free else ""
    commands = (command,) if command else ()
    return Check(
        "In use", says, tuple(trouble("NPK908", _users(state, chip), remedy, commands=commands) for chip in busy)
    )


def is_busy(state: MachineState, chip: Chip) -> bool:
    """Return whether a process uses a chip's memory. npu-smi does not list processes of other containers."""
    if any((process.npu, process.chip) == (chip.npu, chip.chip) for process in state.smi.processes):
        return True
    return (chip.memory_used_mib or 0) > max(IDLE_MEMORY_MIB, (chip.memory_total_mib or 0) // 10)


def _users(state: MachineState, chip: Chip) -> str:
    mine = [process for process in state.smi.processes if (process.npu, process.chip) == (chip.npu, chip.chip)]
    users = ", ".join(f"{process.name or 'a process'} (pid {process.pid})" for process in mine)
    users = users or "a process npu-smi cannot see"
    used, total = (chip.memory_used_mib or 0) / 1024, (chip.memory_total_mib or 0) / 1024
    return f"NPU {chip.npu} chip {chip.chip} is used by {users}: {used:.0f} of {total:.0f} GiB"


def links(state: MachineState) -> Check:
    """Check that all cards have the same kind of link, and that the CPUs near the cards may be used."""
    topology = state.topology
    if len(topology.names) < 2:
        return skip("Links", "one card" if len(state.chips) == 1 else "unknown")
    kinds = sorted(topology.kinds)
    troubles = []
    # SIO connects the two dies of a package. It is always beside another kind, which connects the packages.
    if len(topology.kinds - {"SIO"}) > 1:
        troubles.append(trouble("NPK942", f"The cards have different kinds of links: {', '.join(kinds)}"))
    near: set[int] = set().union(*(numbers_of(cpus) for cpus in topology.cpus))
    if near and state.cpus and not near & state.cpus:
        evidence = f"near the cards: {topology.cpus[0]} …; allowed: {len(state.cpus)} others"
        troubles.append(trouble("NPK943", evidence=evidence))
    nodes = f", {state.numa_nodes} NUMA nodes" if state.numa_nodes > 1 else ""
    return Check("Links", f"{', '.join(kinds)} between {len(topology.names)} cards{nodes}", tuple(troubles))
