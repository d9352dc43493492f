"""Record what a run computes: modules, operators, and statistics of every tensor between them."""
