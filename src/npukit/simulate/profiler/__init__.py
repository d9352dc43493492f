"""Turn a recording of the simulated NPU into the files that `msprof` writes and torch_npu's profiler reads."""
