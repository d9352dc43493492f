"""Run a project before and after its migration, and say whether it still computes the same."""

from npukit.verify.result import Compared, FirstDifference, OpUse, RunResult, Verification
from npukit.verify.verify import verify

__all__ = ["Compared", "FirstDifference", "OpUse", "RunResult", "Verification", "verify"]
