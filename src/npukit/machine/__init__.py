"""What is on a machine: cards, links, CPUs, driver, network. It is looked at here, and judged elsewhere."""

from npukit.machine.machine import Machine, ProgramResult

__all__ = ["Machine", "ProgramResult"]
