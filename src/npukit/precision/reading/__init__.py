"""Read dumps: ours, msprobe's, ptdbg's and the training monitor's. Nothing in a dump is ever executed."""
