"""Maps CUDA at run time to an NPU (`run --auto`) or to the CPU (`verify`'s original). No file is changed.

table.py lists every place in torch that is patched, with both replacements; to_npu and to_cpu apply it.
"""
