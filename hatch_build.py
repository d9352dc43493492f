"""A wheel for one architecture, where scripts/make_wheels.py has built the simulated NPU's libraries for it."""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Prebuilt(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if folder := os.environ.get("NPUKIT_PREBUILT"):
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{os.environ['NPUKIT_PLATFORM']}"
            build_data["force_include"][folder] = "npukit/simulate/prebuilt"
