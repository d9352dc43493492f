"""Reinforcement learning: each process samples answers on its device, rewards them and learns from them.

The rollout engine is npukit's inference engine running on the modules that are trained: the weights exist once, and
nothing is copied between steps.
"""
