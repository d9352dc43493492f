"""Reference kernels, in plain PyTorch, of the ops that only torch_npu has."""
