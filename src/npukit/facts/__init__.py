"""What is known about Ascend: data files with typed loaders. This package imports no other part of npukit."""
