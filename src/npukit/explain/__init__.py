"""Find known errors in logs, codes and tracebacks, and say what they mean and what to do."""

from npukit.explain.explanation import Explanation, explain, explain_logs, first_error_line

__all__ = ["Explanation", "explain", "explain_logs", "first_error_line"]
