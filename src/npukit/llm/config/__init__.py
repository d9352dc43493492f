"""The configuration of a run: its options, how they are read, checked and explained, and the names other tools use."""
