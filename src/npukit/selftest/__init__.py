"""The self-test: run on this machine's device what was shown on the simulated NPU.

`run.selftest` starts processes that run the checks of `groups`, and compares their results with reference.json.
"""
