"""Problems of a training run, found early and explained."""

from npukit.train.trouble.hang import HangWatch
from npukit.train.trouble.memory import explain_out_of_memory
from npukit.train.trouble.signals import StopSignals
from npukit.train.trouble.unused import explain_unused

__all__ = [
    "HangWatch",
    "StopSignals",
    "explain_out_of_memory",
    "explain_unused",
]
