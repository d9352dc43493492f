"""Rules about CUDA code, the engine that applies them, and the migration made of them."""

from npukit.migrate.engine import FileResult, check_file, run
from npukit.migrate.rule import Rule
from npukit.migrate.target import Style, Target

__all__ = ["FileResult", "Rule", "Style", "Target", "check_file", "run"]
