"""The losses of the tasks. They need torch, so a task imports its own when it is trained."""
