"""The self-test: what was shown on the simulated NPU, run on the device of this machine.

`run.selftest` starts processes that run the checks of `groups`, and holds what they compute against reference.json.
"""
