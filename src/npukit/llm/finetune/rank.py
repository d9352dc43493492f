"""One process of a training: `python -m npukit.llm.finetune.rank`, with the configuration in its environment.

Every rank on the machine inherits the environment. Unlike a file in a shared folder, it disappears with the process and
other users cannot read it.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.config.wording import worded

CONFIG = "NPUKIT_CONFIG"
NAMES = "NPUKIT_OPTION_NAMES"


def handed_over(config: Config, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that pass a rank its configuration and the user's names for options.

    The configuration is compressed, because Linux limits a variable to 128 KiB.
    """
    packed = base64.b64encode(zlib.compress(config.model_dump_json().encode())).decode()
    return {CONFIG: packed, NAMES: json.dumps(names or {})}


def taken_over() -> Config:
    """Return the configuration that this process was started with."""
    return Config.model_validate_json(zlib.decompress(base64.b64decode(os.environ.pop(CONFIG))))


def run_rank(train: Callable[[Config], Any]) -> None:
    """Train with the configuration in the environment, and exit with the training's exit code."""
    # npukit.launch.script reports NpukitErrors and Ctrl-C once for all ranks.
    config = taken_over()
    try:
        sys.exit(train(config).exit_code)
    except NpukitError as error:
        raise NpukitError(worded(str(error), json.loads(os.environ[NAMES])), error.on_the_way) from error


def _train(config: Config) -> Any:
    from npukit.llm.finetune.train import train  # the import takes seconds

    return train(config)


if __name__ == "__main__":
    run_rank(_train)
