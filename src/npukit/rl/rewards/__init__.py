"""Reward functions: npukit's own, those of a Python file, and reward models.

Functions run in a process of their own (worker.py), so that one that hangs can be ended, one that prints disturbs
nothing, and one that uses signals, as math-verify does, has a main thread.
"""
