"""One rank of a training: `python -m npukit.llm.finetune.rank CONFIG.json`."""

from __future__ import annotations

import sys
from pathlib import Path

from npukit.llm.config.options import Config


def main() -> None:
    # What the user can mend is said by npukit.launch.script, once for all ranks.
    try:
        from npukit.llm.finetune.train import train  # seconds, in which somebody may change their mind

        train(Config.model_validate_json(Path(sys.argv[1]).read_text()))
    except KeyboardInterrupt:
        print("npukit: interrupted.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
