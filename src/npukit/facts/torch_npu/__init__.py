"""Facts about torch_npu by version. Versions without facts of their own use the nearest older ones."""

from __future__ import annotations

from pathlib import Path

from npukit.facts.version_table import VersionTable

_FOLDER = Path(__file__).parent

APIS = VersionTable(_FOLDER / "apis.csv", width=5)
"""What the documentation says of the APIs of torch, by series of cards."""

NAMES = VersionTable(_FOLDER / "names.csv", width=2)
"""The public names of torch.npu, torch.accelerator and torch.cpu."""

OPERATORS = VersionTable(_FOLDER / "operators.csv", width=2)
"""What runs an aten operator, for the versions whose dispatcher was asked."""
