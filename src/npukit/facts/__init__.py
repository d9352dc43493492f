"""What is known about Ascend: data files with their typed loaders. Nothing here imports the rest of npukit's parts."""
