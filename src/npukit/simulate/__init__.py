"""The simulated NPU: the real torch_npu on any Linux machine, on top of a small library that answers as CANN does.

>>> import npukit.simulate
>>> npukit.simulate.activate(devices=2)  # before torch is imported
>>> import torch
>>> torch.npu.device_count()
2
"""

from npukit.simulate.environment import activate, environment

__all__ = ["activate", "environment"]
