"""Examines a machine: collects its state and runs all checks over it."""

from __future__ import annotations

from dataclasses import dataclass

from npukit.doctor import hardware, settings, software
from npukit.doctor.check import Check, CheckState
from npukit.doctor.problems import Trouble
from npukit.facts.target import Target
from npukit.machine import Machine
from npukit.machine.found import MachineState
from npukit.machine.probe import probe
from npukit.report import Finding, Severity

# The order is that in which problems have to be fixed: without a driver, nothing after it can work.
CHECKS = (
    hardware.npus,
    hardware.driver,
    hardware.device_files,
    hardware.health,
    software.cann,
    software.kernels,
    software.packages,
    software.imports,
    settings.environment,
    hardware.in_use,
    settings.memory,
    hardware.links,
    settings.network,
)


@dataclass(frozen=True)
class Diagnosis:
    """The results of all checks of a machine."""

    checks: tuple[Check, ...]
    simulated: bool
    has_npus: bool

    @property
    def troubles(self) -> list[Trouble]:
        """All problems, by severity. Problems of the same severity are in the order of the checks."""
        order = (Severity.error, Severity.warning, Severity.note)
        all_of_them = [trouble for check in self.checks for trouble in check.troubles]
        return sorted(all_of_them, key=lambda trouble: order.index(trouble.finding.severity))

    @property
    def first(self) -> Finding | None:
        """The problem to fix first, or None. Notes need no fix."""
        worst = next(iter(self.troubles), None)
        return worst.finding if worst and worst.finding.severity is not Severity.note else None

    @property
    def good(self) -> bool:
        return all(check.state is not CheckState.error for check in self.checks)


def examine(machine: Machine | None = None, target: Target | None = None) -> Diagnosis:
    """Examine a machine, by default this one. With a target, also check that the machine matches it.

    >>> examine().first
    """
    return diagnose(probe(machine or Machine()), target)


def diagnose(state: MachineState, target: Target | None = None) -> Diagnosis:
    """Run all checks over the state of a machine that was collected before."""
    checks = [check(state) for check in CHECKS]
    if target:
        checks.append(software.target(state, target))
    return Diagnosis(tuple(checks), state.simulated, state.has_npus)
