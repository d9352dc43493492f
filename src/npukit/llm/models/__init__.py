"""Load and tune models, and replace parts of them by faster ones."""
