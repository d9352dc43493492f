"""Record what a run computes: modules, operators, and statistics of all their tensors."""
