"""Become a script or module, as `python SCRIPT` would, with what npukit adds to the process.

Run as `python -m npukit.launch.script [--auto] SCRIPT|-m MODULE [ARGS]`. It adds:
- an explanation after the traceback of an error that nobody caught; a rank hands its error to the launcher instead,
  which explains the first one;
- for a rank: it dies with its launcher, keeps to the CPUs near its card and writes one log;
- silence about what is of no use to anybody, see npukit/quiet.py;
- libraries that are imported sooner, see imports.py;
- with --auto: CUDA code runs on an NPU, see shim/;
- on the CPU or on CUDA: torch_npu is not there, even where it is installed;
- what another part of npukit asked for with NPUKIT_HOOK, such as recording what the script computes.

Every start passes here: it imports nothing but what it needs.
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
from npukit.report.terminal import say
from npukit.shim.children import run_first_in_spawned

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
GIVEN = "NPUKIT_DEVICE"  # the kind of device that a process was given
LAUNCHER = "NPUKIT_LAUNCHER"  # process number of the launcher, in its ranks
AUTOLOAD_LATER = "NPUKIT_AUTOLOAD_LATER"  # the launcher alone goes without a device, its ranks do not
RANK_CPUS = "NPUKIT_RANK_CPUS"  # "0-7;8-15": the CPUs of each local rank
ONE_LOG = "NPUKIT_ONE_LOG"  # errors go where output goes
HOOK = "NPUKIT_HOOK"  # "module:function", to be called before the script runs
DONE = ".done"  # beside that file, for a rank that came to its end
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # where torchrun looks for the reason of a rank's failure


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
        _mark_done()
    except SystemExit as ended:
        if ended.code in (None, 0):
            _mark_done()
        raise
    except Exception as error:
        sys.exit(_tell_failure(_named_if_ours(error, arguments)))
    except KeyboardInterrupt:
        if not is_ours(arguments):
            raise  # a script's own traceback shows where it was, as under `python`
        say("interrupted")
        sys.exit(130)


def is_ours(arguments: list[str]) -> bool:
    """Whether npukit itself runs in this process, not a script of the user's."""
    return arguments[0] == "-m" and arguments[1].startswith("npukit.")


def begin(arguments: list[str]) -> None:
    """Prepare this process for npukit's own modules, or for a script of the user's, which they may run in turn."""
    own = is_ours(arguments)
    quiet.install(own)
    # Python looks for garbage several times when it ends: among a million objects of torch, a second of work.
    (atexit.register if own else atexit.unregister)(gc.freeze)


def run_command(arguments: list[str]) -> None:
    """Run `SCRIPT [ARGS]` or `-m MODULE [ARGS]` as the main module of this process.

    It stays that until Python ends and takes it apart: what a script left open is written then, as under `python`.
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
        path = str(Path(arguments[0]).absolute())  # as `python` has it
        main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None, __doc__=None)
        exec(compile_script(path), main.__dict__)


def compile_script(path: str) -> types.CodeType:
    """The script's code, compiled as --auto wants it where it is in use."""
    source = Path(path).read_bytes()
    if own_code := sys.modules.get("npukit.shim.own_code"):
        return own_code.compile_own(source, path)  # type: ignore[no-any-return]
    return compile(source, path, "exec", dont_inherit=True)


def _mark_done() -> None:
    """Tell the launcher that this rank is done, which may take seconds to end: those that wait for it will fail."""
    from contextlib import suppress

    if error_file := os.environ.get(ERROR_FILE):
        with suppress(OSError):
            Path(error_file).with_suffix(DONE).touch()


def call_hook() -> None:
    """Do what another part of npukit asked for."""
    from importlib import import_module

    if hook := os.environ.get(HOOK):
        module, _, function = hook.partition(":")
        getattr(import_module(module), function)()


def hide_torch_npu() -> None:
    """Go without it on other devices.

    accelerate and transformers import it where they find it, and then torch's optimizers ask it for a card.
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
    """A package that npukit needs, or a full disk where npukit was writing, is one sentence.

    A script's own error keeps its traceback.
    """
    from npukit.packages import missing_package
    from npukit.report.writing import disk_full

    return missing_package(error) or (is_ours(arguments) and disk_full(error)) or error


def _tell_failure(error: Exception) -> int:
    """Say what went wrong, or hand it to the launcher; returns the exit code."""
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
        # Who watches all ranks at once sees the one traceback that matters, from the launcher.
        write_error_file(error_file, f"{type(error).__name__}: {error}", text, "traceback")
    else:
        sys.excepthook(type(error), error, error.__traceback__)
        print(explained(text), end="", file=sys.stderr)
    return 1


def _of_script(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from the script on, without the frames that led to it: up to the last `run_command`, and runpy's.

    None where the script could not even be compiled, as `python` shows it.
    """
    frames = []
    while trace:
        frames.append(trace)
        trace = trace.tb_next
    # Compared by value: this module is there twice where a module of npukit, run by it, runs the script.
    starts = [index for index, frame in enumerate(frames) if frame.tb_frame.f_code == run_command.__code__]
    first = starts[-1] + 1 if starts else 0
    while first < len(frames) - 1 and frames[first].tb_frame.f_code.co_filename.endswith(("runpy>", "runpy.py")):
        first += 1
    if first < len(frames) and frames[first].tb_frame.f_code == compile_script.__code__:
        return None
    return frames[min(first, len(frames) - 1)] if frames else None


if __name__ == "__main__":
    main()
