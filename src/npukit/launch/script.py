"""Runs a script or module as `python SCRIPT` would, with npukit's additions.

`python -m npukit.launch.script [--auto] SCRIPT|-m MODULE [ARGS]` adds:
- an explanation after the traceback of an uncaught error; a rank passes its error to the launcher instead, which
  explains the first one;
- for a rank: it ends with its launcher, runs on the CPUs near its card and writes one log;
- no useless warnings of libraries, see npukit/quiet.py;
- faster imports, see imports.py;
- with --auto: CUDA code runs on an NPU, see shim/;
- on the CPU or CUDA: torch_npu is hidden, even if it is installed;
- the function in NPUKIT_HOOK, with which other parts of npukit record what the script computes.

Every start runs this module, so it imports only what it needs.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import types
from pathlib import Path

from npukit import quiet
from npukit.children import die_with
from npukit.launch.imports import quicken_imports
from npukit.report.terminal import reader_is_gone, say
from npukit.shim.children import run_first_in_spawned

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
GIVEN = "NPUKIT_DEVICE"  # the kind of device of a process
LAUNCHER = "NPUKIT_LAUNCHER"  # the launcher's process id, for its ranks
AUTOLOAD_LATER = "NPUKIT_AUTOLOAD_LATER"  # the launcher uses no device, but its ranks do
RANK_CPUS = "NPUKIT_RANK_CPUS"  # "0-7;8-15": the CPUs of each local rank
ONE_LOG = "NPUKIT_ONE_LOG"  # errors go where output goes
HOOK = "NPUKIT_HOOK"  # "module:function", to be called before the script runs
DONE = ".done"  # beside that file, when a rank's script has finished
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun reads the reason of a rank's failure


def main() -> None:
    arguments = sys.argv[1:]
    auto = arguments[0] == "--auto"
    if auto:
        arguments = arguments[1:]
    if launcher := os.environ.pop(LAUNCHER, None):
        _become_rank(int(launcher))
    folder = str(Path.cwd() if arguments[0] == "-m" else Path(arguments[0]).resolve().parent)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    if is_ours(arguments):
        quiet.hide_native()
    begin(arguments)
    quicken_imports()
    run_first_in_spawned("from npukit.launch.imports import quicken_imports; quicken_imports()")
    hide_torch_npu()
    if auto:
        from npukit.shim.to_npu import apply

        apply(folder)
    try:
        call_hook()
        run_command(arguments)
        _succeed(arguments, folder)
    except SystemExit as ended:
        if ended.code in (None, 0):
            _succeed(arguments, folder)
        raise
    except Exception as error:
        if isinstance(error, BrokenPipeError) and is_ours(arguments) and reader_is_gone():
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what Python flushes at exit
            sys.exit(1)
        sys.exit(_tell_failure(_named_if_ours(error, arguments)))
    except KeyboardInterrupt:
        if not is_ours(arguments):
            raise  # the script's traceback shows where it was, as with `python`
        say("interrupted")
        sys.exit(130)


def is_ours(arguments: list[str]) -> bool:
    """Whether this process runs npukit itself, not a script of the user's."""
    return arguments[0] == "-m" and arguments[1].startswith("npukit.")


def begin(arguments: list[str]) -> None:
    """Prepare this process for npukit's modules or a script of the user's."""
    own = is_ours(arguments)
    quiet.install(own)
    # At exit Python collects garbage several times: with torch's million objects that takes a second.
    (atexit.register if own else atexit.unregister)(gc.freeze)


def run_command(arguments: list[str]) -> None:
    """Run `SCRIPT [ARGS]` or `-m MODULE [ARGS]` as the main module of this process.

    It stays the main module until Python exits, so that open files of a script are flushed as with `python`.
    """
    import runpy

    begin(arguments)
    is_module = arguments[0] == "-m"
    sys.argv = arguments[1:] if is_module else arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if is_module:
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
    elif Path(arguments[0]).is_dir() or arguments[0].endswith((".zip", ".pyz")):
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        path = str(Path(arguments[0]).absolute())  # as with `python`
        main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None, __doc__=None)
        exec(compile_script(path), main.__dict__)


def compile_script(path: str) -> types.CodeType:
    """The script's code, transformed if --auto is used."""
    source = Path(path).read_bytes()
    if own_code := sys.modules.get("npukit.shim.own_code"):
        return own_code.compile_own(source, path)  # type: ignore[no-any-return]
    return compile(source, path, "exec", dont_inherit=True)


def _succeed(arguments: list[str], folder: str) -> None:
    """Finish a script that ran to its end: a CUDA script that ran on the CPU of a machine with NPUs is told so."""
    _mark_done()
    if "torch" in sys.modules and not is_ours(arguments):
        from npukit.launch.unused import left_npu_idle

        if left_npu_idle(folder):
            say("the script looked for CUDA and did not use the NPU: add --auto to run its CUDA code on the NPU.")


def _mark_done() -> None:
    """Tell the launcher that this rank has finished: it may take seconds to end, and ranks that wait for it fail."""
    from contextlib import suppress

    if error_file := os.environ.get(ERROR_FILE):
        with suppress(OSError):
            Path(error_file).with_suffix(DONE).touch()


def call_hook() -> None:
    """Call the function in NPUKIT_HOOK."""
    from importlib import import_module

    if hook := os.environ.get(HOOK):
        module, _, function = hook.partition(":")
        getattr(import_module(module), function)()


def hide_torch_npu() -> None:
    """Hide torch_npu on other devices.

    accelerate and transformers import it if it is installed, and then torch's optimizers ask it for a card.
    """
    if os.environ.get(GIVEN, "npu") == "npu":
        return
    from importlib.util import find_spec

    if find_spec("torch_npu"):
        hide = "import sys; sys.modules['torch_npu'] = None"
        exec(hide)
        run_first_in_spawned(hide)


def _become_rank(launcher: int) -> None:
    die_with(launcher)
    if os.environ.pop(AUTOLOAD_LATER, None):
        os.environ.pop(AUTOLOAD, None)
    if os.environ.pop(ONE_LOG, None):
        os.dup2(1, 2)
    if cpus := os.environ.pop(RANK_CPUS, None):
        from npukit.machine.cpus import numbers_of

        os.sched_setaffinity(0, numbers_of(cpus.split(";")[int(os.environ["LOCAL_RANK"])]))


def _named_if_ours(error: Exception, arguments: list[str]) -> Exception:
    """Turn a missing package of npukit's, or a full disk that npukit writes to, into one sentence.

    A script's own error keeps its traceback.
    """
    from npukit.packages import missing_package
    from npukit.report.writing import disk_full

    return missing_package(error) or (is_ours(arguments) and disk_full(error)) or error


def _tell_failure(error: Exception) -> int:
    """Report an error, or pass it to the launcher; returns the exit code."""
    import traceback

    from npukit.errors import NpukitError
    from npukit.launch.failure import explained, write_error_file
    from npukit.report.language import translated
    from npukit.report.result import data_of, error_data, hand_back

    error_file = os.environ.get(ERROR_FILE)
    if isinstance(error, NpukitError):
        if error_file:
            write_error_file(error_file, str(error), f"npukit: {translated(str(error))}", "sentence", error.exit_code)
        else:
            if quiet.verbosity() == "verbose":
                traceback.print_exception(error)
            say(str(error))
        hand_back("error", data_of(error))
        return error.exit_code
    hand_back("error", error_data("failed", f"{type(error).__name__}: {error}"))
    error.__traceback__ = _of_script(error.__traceback__)
    text = "".join(traceback.format_exception(error))
    if error_file:
        # The launcher shows the one traceback that matters of all ranks.
        write_error_file(error_file, f"{type(error).__name__}: {error}", text, "traceback")
    else:
        sys.excepthook(type(error), error, error.__traceback__)
        if not (isinstance(error, BrokenPipeError) and reader_is_gone()):
            print(explained(text), end="", file=sys.stderr)
    return 1


def _of_script(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from the script on, without the frames that led to it: up to the last `run_command`, and runpy's.

    None if the script could not be compiled, as `python` shows it.
    """
    frames = []
    while trace:
        frames.append(trace)
        trace = trace.tb_next
    # Compared by value, because this module may be imported twice: as __main__ and by npukit's modules.
    starts = [index for index, frame in enumerate(frames) if frame.tb_frame.f_code == run_command.__code__]
    first = starts[-1] + 1 if starts else 0
    while first < len(frames) - 1 and frames[first].tb_frame.f_code.co_filename.endswith(("runpy>", "runpy.py")):
        first += 1
    if first < len(frames) and frames[first].tb_frame.f_code == compile_script.__code__:
        return None
    return frames[min(first, len(frames) - 1)] if frames else None


if __name__ == "__main__":
    main()
