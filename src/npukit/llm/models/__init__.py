"""Models: loading, tuning, and the parts of them that are made faster."""
