"""Read profiles: torch_npu's folders and databases, Kineto's traces, npukit's own log."""

from npukit.performance.read.find import read_profiles
from npukit.performance.read.model import Trace

__all__ = ["Trace", "read_profiles"]
