"""Find known errors in logs, codes and tracebacks, and explain what they mean and what to do."""

from npukit.explain.explanation import Explanation, Search, explain, explain_logs

__all__ = ["Explanation", "Search", "explain", "explain_logs"]
