"""Benchmarks: one script per claim. `python -m benchmarks list` shows them, claims.yaml describes them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""
