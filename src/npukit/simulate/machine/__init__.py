"""A plausible Ascend machine around the simulated card: a CANN home, npu-smi and npu-list."""
