"""Read dumps written by npukit, msprobe, ptdbg and msprobe's training monitor. Nothing in a dump is ever executed."""
