"""The losses of the tasks, which need torch; a task imports its own when it is trained."""
