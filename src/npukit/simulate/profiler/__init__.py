"""What `msprof` makes of a recording of the simulated NPU: the files that torch_npu's profiler reads."""
