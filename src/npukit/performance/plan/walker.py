"""The process of a walk: `python -m npukit.performance.plan.walker [SCRIPT|-m MODULE] [ARGS]`.

Without a script it walks through the training of the configuration in its environment. It writes its observations as
JSON to the file in NPUKIT_WALK, or the reason why there are none.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import NoReturn

FILE, STEPS = "NPUKIT_WALK", "NPUKIT_WALK_STEPS"
FAILED = "failed"  # the key of the reason, instead of a result


def main() -> None:
    from npukit.performance.plan import alone
    from npukit.performance.plan.observe import Observer, WalkIsOver
    from npukit.report.json import to_json

    file, arguments = Path(os.environ.pop(FILE)), sys.argv[1:]
    observer = Observer(int(os.environ.pop(STEPS)))
    alone.install(observer.collective)
    try:
        with observer:
            if arguments:
                from npukit.launch.script import run_command

                run_command(arguments)
            else:
                from npukit.performance.plan.model_job import train_shapes

                train_shapes(file.with_name("run"))
    except WalkIsOver:
        pass
    except SystemExit as ended:
        if ended.code:
            _fail(file, f"the script exits with {ended.code}")
    except Exception as error:
        _fail(file, "".join(traceback.format_exception_only(error)).strip().splitlines()[0])
    walked = observer.walked()
    if not observer.saw_device:
        _fail(file, "the script trains without the NPU: name the device in its options, or use --auto")
    if not walked.steps:
        _fail(file, "the script makes no training step: nothing updates weights after a backward pass")
    file.write_text(to_json(walked), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # ends the job in the middle of a step


def _fail(file: Path, reason: str) -> NoReturn:
    file.write_text(json.dumps({FAILED: reason}), encoding="utf-8")
    sys.exit(1)


if __name__ == "__main__":
    main()
