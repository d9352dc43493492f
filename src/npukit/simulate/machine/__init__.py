"""A believable Ascend machine around the simulated card: a CANN home, npu-smi, npu-list."""
