"""Find out what a machine has: cards, links, CPUs, driver, network. What is right or wrong is decided elsewhere."""

from npukit.machine.machine import Machine, ProgramResult

__all__ = ["Machine", "ProgramResult"]
