"""Checks of environment variables, memory, disk space and network."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from npukit.doctor.check import Check, skip
from npukit.doctor.problems import Trouble, trouble
from npukit.facts.variables import Variable, conflicts, meant, variables
from npukit.facts.versions import key
from npukit.machine.found import MachineState
from npukit.machine.network import HCCL_PORTS, hccl_ports
from npukit.report import Severity

GIB = 2**30
LEAST_SHARED_MEMORY = GIB
LEAST_DISK = 20 * GIB
LEAST_FILES = 4096
OURS = re.compile(
    r"(?:ASCEND|HCCL|TORCH_HCCL|TORCH_NPU|PYTORCH_NPU|ACL|ACLNN|NPU|TASK_QUEUE|COMBINED|INF_NAN|MULTI_STREAM)_"
)


def environment(state: MachineState) -> Check:
    """Check the names, the values and the combinations of environment variables."""
    known = variables()
    ours = {name: value for name, value in state.environ.items() if name in known and not known[name].of_cuda}
    if not state.has_npus:
        return skip("Variables", f"{len(ours)} set")
    return Check("Variables", f"{len(ours)} set", tuple(_variable_troubles(state, ours)))


def _variable_troubles(state: MachineState, ours: Mapping[str, str]) -> Iterator[Trouble]:
    for name, value in ours.items():
        variable = variables()[name]
        if not variable.accepts(value):
            yield _bad_value(variable, value)
    for conflict in conflicts():
        first, second = ours.get(conflict.first), ours.get(conflict.second)
        if first is None or second is None:
            continue
        if re.fullmatch(conflict.first_value, first) and re.fullmatch(conflict.second_value, second):
            what = f"{conflict.first}={first} and {conflict.second}={second}: {conflict.why}"
            severity = Severity.error if conflict.error else None
            yield trouble("NPK930", what, f"Run `{conflict.remedy}`.", commands=(conflict.remedy,), severity=severity)
    yield from _timeouts(ours)
    yield from _visible_devices(state)
    yield from _names(state)


def _bad_value(variable: Variable, value: str) -> Trouble:
    what = f"{variable.name}={value!r} is invalid: {variable.why}"
    if variable.ascending and (numbers := sorted({int(number) for number in re.findall(r"\d+", value)})):
        command = f"export {variable.name}={','.join(map(str, numbers))}"
    elif variable.default:
        command = f"export {variable.name}={variable.default}"
    else:
        command = f"unset {variable.name}"
    return trouble("NPK933", what, f"Run `{command}`.", commands=(command,))


def _timeouts(ours: Mapping[str, str]) -> Iterator[Trouble]:
    event, execution = ours.get("HCCL_EVENT_TIMEOUT", ""), ours.get("HCCL_EXEC_TIMEOUT", "")
    if event.isdecimal() and execution.isdecimal() and 0 < int(event) <= int(execution):
        command = f"export HCCL_EVENT_TIMEOUT={int(execution) + 32}"
        what = f"HCCL_EVENT_TIMEOUT={event} must be above HCCL_EXEC_TIMEOUT={execution}"
        yield trouble("NPK930", what, f"Run `{command}`.", commands=(command,))


def _visible_devices(state: MachineState) -> Iterator[Trouble]:
    value = state.environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
    count = len(state.chips) or len(state.card_files)
    beyond = [number for number in value.split(",") if number.isdecimal() and int(number) >= count]
    if count and beyond and variables()["ASCEND_RT_VISIBLE_DEVICES"].accepts(value):
        what = f"ASCEND_RT_VISIBLE_DEVICES={value}, but there are only devices 0 to {count - 1}"
        command = f"export ASCEND_RT_VISIBLE_DEVICES={','.join(map(str, range(count)))}"
        inside = "In a container cards count from 0" if state.in_container else "Name only cards that exist"
        yield trouble("NPK935", what, f"{inside}: `{command}`.", commands=(command,))


def _names(state: MachineState) -> Iterator[Trouble]:
    known = variables()
    cann = state.cann.version if state.cann else ""
    for name, value in state.environ.items():
        variable = known.get(name)
        if variable is None:
            right = meant(name) if OURS.match(name) else None
            if right:
                command = f"export {right}={shlex.quote(value)}"
                yield trouble(
                    "NPK931",
                    f"{name}: did you mean {right}?",
                    f"Run `{command}` instead.",
                    commands=(f"unset {name}", command),
                )
        elif variable.deprecated_for and (not variable.since_cann or (cann and key(cann) >= key(variable.since_cann))):
            command = f"export {variable.deprecated_for}={shlex.quote(value)}"
            remedy = f"Run `unset {name}` and `{command}`."
            yield trouble("NPK932", f"{name} is deprecated", remedy, commands=(f"unset {name}", command))
        elif variable.of_cuda and not state.gpus:
            yield trouble("NPK934", f"{name} has no effect on NPUs", f"Set {variable.instead} instead.")


def memory(state: MachineState) -> Check:
    """Check that there is enough shared memory and disk space, and that processes can open enough files."""
    sizes, troubles = [], []
    if state.memory:
        sizes.append(f"{state.memory / GIB:.0f} GiB of memory")
    if state.shared_memory is not None:
        sizes.append(f"{_size(state.shared_memory)} of shared memory")
        if state.has_npus and state.shared_memory < LEAST_SHARED_MEMORY:
            troubles.append(trouble("NPK940", f"/dev/shm has only {_size(state.shared_memory)}"))
    if state.disk_free is not None:
        sizes.append(f"{_size(state.disk_free)} free on this disk")
        if state.has_npus and state.disk_free < LEAST_DISK:
            troubles.append(trouble("NPK941", f"Only {_size(state.disk_free)} free on this disk"))
    if state.has_npus and not state.simulated and state.open_files is not None and state.open_files < LEAST_FILES:
        what = f"A process may open only {state.open_files} files"
        troubles.append(trouble("NPK944", what, commands=("ulimit -n 65536",)))
    return Check("Memory, disk", ", ".join(sizes) or "unknown", tuple(troubles), skipped=not sizes)


def _size(number: int) -> str:
    return f"{number / GIB:.0f} GiB" if number >= GIB else f"{number / 2**20:.0f} MiB"


def network(state: MachineState) -> Check:
    """Check that HCCL's ports are free and that its network interface exists."""
    if not state.has_npus:
        return skip("Network", ", ".join(state.interfaces) or "no interface")
    says = ", ".join(state.interfaces) or "no interface except loopback"
    return Check("Network", says, tuple(_network_troubles(state)))


def _network_troubles(state: MachineState) -> Iterator[Trouble]:
    wanted_ports = hccl_ports(state.environ)
    taken = sorted(state.ports_in_use.intersection(wanted_ports))
    if taken:
        command = f"export HCCL_IF_BASE_PORT={_free_range(state, wanted_ports.start)}"
        what = f"Some of HCCL's ports are in use: {', '.join(map(str, taken[:5]))}"
        yield trouble("NPK950", what, f"Run `{command}` on every node.", commands=(command,))
    wanted = state.environ.get("HCCL_SOCKET_IFNAME", "")
    if wanted and not wanted.startswith("^"):
        names = [name.lstrip("=") for name in wanted.split(",")]
        if state.interfaces and not any(
            interface.startswith(name) for interface in (*state.interfaces, "lo") for name in names
        ):
            yield trouble(
                "NPK951", f"HCCL_SOCKET_IFNAME={wanted}, but these interfaces are up: {', '.join(state.interfaces)}"
            )
    elif not wanted and "HCCL_IF_IP" not in state.environ and _real(state.interfaces) > 1 and not state.simulated:
        yield trouble("NPK952", f"HCCL will choose among {', '.join(state.interfaces)} by name")


def _free_range(state: MachineState, taken: int) -> int:
    starts = (start for start in range(50000, 64000, HCCL_PORTS) if abs(start - taken) >= HCCL_PORTS)
    free = (start for start in starts if not any(start <= port < start + HCCL_PORTS for port in state.ports_in_use))
    return next(free, 50000)


def _real(interfaces: tuple[str, ...]) -> int:
    return sum(not re.match(r"docker|veth|br-|virbr|cali|flannel|cni", name) for name in interfaces)
