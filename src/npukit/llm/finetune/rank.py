"""One process of a training: `python -m npukit.llm.finetune.rank`, with the configuration in its environment.

The environment reaches every rank on the machine, outlives nothing, and is closed to other users, which no file in a
shared folder is.
"""

from __future__ import annotations

import base64
import os
import sys
import zlib

from npukit.llm.config.options import Config

CONFIG = "NPUKIT_CONFIG"


def handed_over(config: Config) -> dict[str, str]:
    """The variable that tells a rank its configuration; packed, because Linux limits it to 128 KiB."""
    return {CONFIG: base64.b64encode(zlib.compress(config.model_dump_json().encode())).decode()}


def taken_over() -> Config:
    """The configuration that this process was started with."""
    return Config.model_validate_json(zlib.decompress(base64.b64decode(os.environ.pop(CONFIG))))


def main() -> None:
    # Errors that the user can fix, and Ctrl-C, are reported by npukit.launch.script, once for all ranks.
    config = taken_over()
    from npukit.llm.finetune.train import train  # takes seconds to import

    sys.exit(train(config).exit_code)


if __name__ == "__main__":
    main()
