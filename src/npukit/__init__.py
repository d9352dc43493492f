"""Take PyTorch projects from CUDA to Ascend NPU, and try them on a simulated NPU first."""

__version__ = "0.1.0"
