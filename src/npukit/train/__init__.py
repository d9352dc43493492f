"""The training engine: any model, any data, on NPU, GPU or CPU, one device or many."""
