"""Checks whether a machine can train on NPUs, and explains what is wrong if it cannot."""
