"""The simulated CANN runtime through ctypes, for code that tests run in a process of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

library = ctypes.CDLL("libascendcl.so", mode=ctypes.RTLD_GLOBAL)
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
library.aclrtGetSocName.restype = ctypes.c_char_p
Task = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE = 1, 2, 3
TIMING, NO_TIMING = 8, 1
MIB = 1 << 20


class AclError(RuntimeError):
    """A call that did not return 0; `code` is what it returned."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{code}: {message()}")
        self.code = code


def message() -> str:
    """What aclGetRecentErrMsg says, once."""
    return (library.aclGetRecentErrMsg() or b"").decode()


def call(name: str, *arguments: Any) -> None:
    """Call a function of the runtime; ints are passed as 64 bits, so that pointers and sizes survive."""
    code = library[name](
        *(ctypes.c_int64(argument) if isinstance(argument, int) else argument for argument in arguments)
    )
    if code:
        raise AclError(code)


def error_of(name: str, *arguments: Any) -> int:
    """The error code that a call returns."""
    try:
        call(name, *arguments)
    except AclError as error:
        return error.code
    return 0


def get(name: str, *arguments: Any, kind: type[Any] = ctypes.c_int64, out: int = 0) -> int:
    """Call a function that writes its result through the pointer at position `out`."""
    result = kind(0)
    call(name, *arguments[:out], ctypes.byref(result), *arguments[out:])
    return int(result.value or 0)


def device_memory(size: int) -> int:
    return get("aclrtMalloc", size, 0)


def pinned_memory(size: int) -> int:
    return get("aclrtMallocHost", size)


def stream() -> int:
    return get("aclrtCreateStream")


def event(flag: int = NO_TIMING) -> int:
    return get("aclrtCreateEventExWithFlag", flag)


def memory_info() -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("aclrtGetMemInfo", 0, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def read(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def write(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))


_tasks: list[Any] = []  # C does not keep them alive


def enqueue(on: int, function: Callable[[], int | None]) -> None:
    """Put Python code on a stream, as a collective is put there."""
    task = Task(lambda _: function() or 0)
    _tasks.append(task)
    call("npusim_stream_enqueue", on, task, 0)


def resident_mib() -> int:
    """Memory this process has touched at most; getrusage would count that of the process that started it, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024
