"""CUDA's names at run time: they mean an NPU (`run --auto`), or the CPU (`verify`'s original). No file is changed.

table.py names each place in torch that is changed, with what it becomes in either case; to_npu and to_cpu apply it.
"""
