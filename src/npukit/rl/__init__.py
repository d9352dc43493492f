"""Reinforcement learning: one process on a device samples answers, rewards them and learns from them.

The rollout engine is npukit's inference engine on the modules that are trained: the weights are held once, and
nothing is copied between steps.
"""
