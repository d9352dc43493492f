"""The simulated CANN runtime, called as torch_npu calls it; no torch here, each test in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from npukit.simulate import environment

PREAMBLE = "import os, sys, threading, time\nfrom acl import *\ncall('aclInit', None)\ncall('aclrtSetDevice', 0)\n"
RunAcl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def machine() -> dict[str, str]:
    return {**environment(devices=2), "NPUKIT_SIM_OPERATORS": "", "PYTHONPATH": str(Path(__file__).parent)}


@pytest.fixture
def acl(machine: dict[str, str]) -> RunAcl:
    """Run code against the runtime; it must succeed unless another exit code is named."""

    def run(
        code: str, *arguments: str, exit_code: int = 0, prepared: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", (PREAMBLE if prepared else "") + textwrap.dedent(code), *arguments]
        result = subprocess.run(command, env={**machine, **variables}, timeout=60, capture_output=True, text=True)
        assert result.returncode == exit_code, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run


def test_everything_torch_npu_links_is_there(machine: dict[str, str]) -> None:
    libraries = Path(machine["LD_LIBRARY_PATH"].split(":")[0])
    wheel = Path(environment()["PYTHONPATH"].split(":")[0]) / "torch_npu"

    def symbols(file: Path, which: str) -> set[str]:
        listed = subprocess.run(["nm", "-D", which, file], capture_output=True, text=True, check=True).stdout
        return {line.split()[-1] for line in listed.splitlines()}

    needed = set().union(*(symbols(file, "--undefined-only") for file in wheel.glob("lib/*.so")))
    needed = {name for name in needed if name.startswith(("acl", "Hccl", "Msprof", "rt"))}
    given = set().union(*(symbols(file, "--defined-only") for file in libraries.glob("*.so")))
    assert len(needed) > 70
    assert needed <= given


@pytest.mark.parametrize(
    ("visible", "physical"),
    [
        (None, [0, 1, 2, 3]),
        ("1,3", [1, 3]),
        ("0, 1", [0]),
        ("0,2,", [0, 2]),
        (",0", []),
        ("2,1", []),
        ("0,0", []),
        ("0,9,1", [0]),
        ("1,x,2", [1]),
        ("0,9", [0]),
        ("9", []),
        ("", []),
    ],
)
def test_visible_devices(acl: RunAcl, visible: str | None, physical: list[int]) -> None:
    variables = {} if visible is None else {"ASCEND_RT_VISIBLE_DEVICES": visible}
    code = """
    from acl import *
    count = ctypes.c_uint32()
    code = library.aclrtGetDeviceCount(ctypes.byref(count))
    found = [get("aclrtGetLogicDevIdByUserDevId", device, kind=ctypes.c_int32, out=1) for device in range(count.value)]
    print(code, found, error_of("aclrtSetDevice", count.value))
    """
    out = acl(code, prepared=False, NPUKIT_SIM_DEVICES="4", **variables).stdout
    assert out.strip() == f"{0 if physical else 207004} {physical} 107001"


def test_no_device_set_is_an_error_with_a_message(acl: RunAcl) -> None:
    code = """
    from acl import *
    print(error_of("aclrtGetDevice", ctypes.byref(ctypes.c_int32())))
    library.aclrtMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8), 0)
    print(message(), [message()], library.aclrtGetLastError(0), library.aclrtGetLastError(0))
    """
    out = acl(code, prepared=False).stdout
    assert out.startswith("107002\nEE1001: [PID: ")
    assert "aclrtSetDevice" in out
    assert out.endswith("[''] 107002 0\n")


def test_options_are_kept(acl: RunAcl) -> None:
    acl("""
    compiler = ctypes.CDLL("libacl_op_compiler.so")
    compiler.aclGetCompileoptSize.restype = ctypes.c_size_t
    compiler.aclSetCompileopt(3, b"enable")
    value = ctypes.create_string_buffer(compiler.aclGetCompileoptSize(3))
    assert compiler.aclGetCompileopt(3, value, ctypes.c_size_t(len(value))) == 0 and value.value == b"enable"
    answer = ctypes.c_int64()
    compiler.aclrtSetSysParamOpt(0, ctypes.c_int64(1))
    assert compiler.aclrtGetSysParamOpt(0, ctypes.byref(answer)) == 0 and answer.value == 1
    """)


def test_contexts_carry_the_device_between_threads(acl: RunAcl) -> None:
    code = """
    device = lambda: get("aclrtGetDevice", kind=ctypes.c_int32)
    call("aclrtSetDevice", 1)
    context = get("aclrtGetCurrentContext")
    def other():
        before = device()
        call("aclrtSetCurrentContext", context)
        print(before, device())
    thread = threading.Thread(target=other); thread.start(); thread.join()
    """
    assert acl(code).stdout == "0 1\n"


def test_a_card_says_what_it_is(acl: RunAcl) -> None:
    code = """
    cube, vector = get("aclGetDeviceCapability", 0, 0, out=2), get("aclrtGetDeviceInfo", 0, 201, out=2)
    print(library.aclrtGetSocName().decode(), cube, vector)
    class Version(ctypes.Structure):
        _fields_ = [("text", ctypes.c_char * 128), ("rest", ctypes.c_char * 384)]
    version = Version()
    call("aclsysGetCANNVersion", 0, ctypes.byref(version))
    print(version.text.decode())
    """
    variables = {"NPUKIT_SIM_SOC": "Ascend310P3", "NPUKIT_SIM_CORES": "8,7", "NPUKIT_SIM_CANN_VERSION": "8.3.RC1"}
    assert acl(code, **variables).stdout == "Ascend310P3 8 7\n8.3.RC1\n"


def test_memory_is_limited_by_the_card_and_not_by_the_host(acl: RunAcl) -> None:
    code = """
    free, total = memory_info()
    assert 0.9 * total < free < total == 65536 * MIB
    big = device_memory(40 << 30)
    assert memory_info()[0] == free - (40 << 30)
    assert library.aclrtMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(30 << 30), 0) == 207001
    assert message().startswith("EL0004: [PID: ")
    call("aclrtMemset", big, 40 << 30, 0, 40 << 30)
    write(big + (39 << 30), b"far")
    assert read(big + (39 << 30), 4) == b"far\\0"
    call("aclrtFree", big)
    assert memory_info()[0] == free and error_of("aclrtFree", big) == 107000
    assert resident_mib() < 1000, resident_mib()  # torch is among it, loaded with the operators
    call("aclrtSetDevice", 1)
    assert memory_info() == (free, total)
    """
    acl(code)


def test_zeroing_touches_exactly_its_range(acl: RunAcl) -> None:
    acl("""
    size = 32 * MIB
    memory = device_memory(size)
    ctypes.memset(memory, 7, size)
    call("aclrtMemset", memory + 5, size - 10, 0, size - 10)
    content = read(memory, size)
    assert content[:5] == content[-5:] == b"\\7" * 5 and not any(content[5:-5])
    """)


def test_pointers_are_told_apart(acl: RunAcl) -> None:
    acl("""
    class Attributes(ctypes.Structure):
        _fields_ = [("device", ctypes.c_uint32), ("kind", ctypes.c_int), ("rest", ctypes.c_uint32 * 5)]
    def where(address):
        attributes = Attributes()
        call("aclrtPointerGetAttributes", address, ctypes.byref(attributes))
        return attributes.kind, attributes.device
    HOST, DEVICE, UNKNOWN = 0, 1, 2
    call("aclrtSetDevice", 1)
    ordinary = ctypes.create_string_buffer(8192)
    address = ctypes.addressof(ordinary)
    assert where(device_memory(MIB) + 1000) == (DEVICE, 1)
    assert where(pinned_memory(100) + 50) == (HOST, 0)
    assert where(address)[0] == UNKNOWN
    call("aclrtHostRegisterV2", address, 8192, 2)
    assert where(address + 100)[0] == HOST and error_of("aclrtHostRegisterV2", address, 8192, 2) == 507910
    call("aclrtHostUnregister", address)
    assert where(address)[0] == UNKNOWN and error_of("aclrtHostUnregister", address) == 507911
    """)


def test_asynchronous_copies_are_late_unless_waited_for(acl: RunAcl) -> None:
    acl(
        """
    device, pinned, s = device_memory(8), pinned_memory(8), stream()
    write(device, b"new"); write(pinned, b"old")
    call("aclrtMemcpyAsync", pinned, 8, device, 3, DEVICE_TO_HOST, s)
    assert read(pinned, 3) == b"old"
    began = time.time()
    call("aclrtSynchronizeStream", s)
    assert read(pinned, 3) == b"new" and time.time() - began < 5
    pageable = ctypes.create_string_buffer(8)
    call("aclrtMemcpyAsync", ctypes.addressof(pageable), 8, device, 3, DEVICE_TO_HOST, s)
    assert pageable.value == b"new"
    """,
        NPUKIT_SIM_FAULTS="slow-stream=20000",
    )


def test_slow_streams_hurry_for_whoever_waits_for_what_they_wait_for(acl: RunAcl) -> None:
    acl(
        """
    device, pinned, first, second, e = device_memory(8), pinned_memory(8), stream(), stream(), event()
    write(device, b"new")
    call("aclrtMemcpyAsync", pinned, 8, device, 3, DEVICE_TO_HOST, first)
    call("aclrtRecordEvent", e, first)
    call("aclrtStreamWaitEvent", second, e)
    time.sleep(0.1)
    assert read(pinned, 3) == b"\\0\\0\\0"
    call("aclrtSynchronizeStream", second)
    assert read(pinned, 3) == b"new"
    """,
        NPUKIT_SIM_FAULTS="slow-stream=20000",
    )


def test_work_happens_without_anyone_waiting(acl: RunAcl) -> None:
    acl("""
    device, pinned, s = device_memory(8), pinned_memory(8), stream()
    write(device, b"new")
    call("aclrtMemcpyAsync", pinned, 8, device, 3, DEVICE_TO_HOST, s)
    deadline = time.time() + 10
    while read(pinned, 3) != b"new":
        assert time.time() < deadline
    """)


def test_a_stream_keeps_order_and_events_order_streams(acl: RunAcl) -> None:
    acl("""
    seen, gate = [], threading.Event()
    first, second, e = stream(), stream(), event()
    enqueue(first, lambda: gate.wait() and None)
    for i in range(50):
        enqueue(first, lambda i=i: seen.append(i))
    call("aclrtRecordEvent", e, first)
    call("aclrtStreamWaitEvent", second, e)
    enqueue(second, lambda: seen.append("after"))
    status = lambda: get("aclrtQueryEventStatus", e, kind=ctypes.c_int, out=1)
    assert status() == 0 and get("aclrtStreamQuery", second, kind=ctypes.c_int, out=1) == 1
    threading.Timer(0.05, gate.set).start()
    call("aclrtSynchronizeStream", second)
    assert seen == [*range(50), "after"] and status() == 1
    """)


def test_an_event_recorded_again_stands_for_the_later_place(acl: RunAcl) -> None:
    acl("""
    gate, e, s, waiting, done = threading.Event(), event(), stream(), stream(), []
    call("aclrtRecordEvent", e, s)
    enqueue(s, lambda: gate.wait() and None)
    enqueue(s, lambda: done.append(1))
    call("aclrtRecordEvent", e, s)
    call("aclrtStreamWaitEvent", waiting, e)
    call("aclrtDestroyEvent", e)
    threading.Timer(0.05, gate.set).start()
    call("aclrtSynchronizeStream", waiting)
    assert done == [1]
    """)


def test_elapsed_time(acl: RunAcl) -> None:
    acl("""
    start, end, s, untimed = event(TIMING), event(TIMING), stream(), event(NO_TIMING)
    ms = ctypes.c_float()
    assert error_of("aclrtEventElapsedTime", ctypes.byref(ms), start, end) == 107006
    call("aclrtRecordEvent", start, s)
    enqueue(s, lambda: time.sleep(0.05))
    call("aclrtRecordEvent", end, s)
    assert error_of("aclrtEventElapsedTime", ctypes.byref(ms), start, end) == 507006
    call("aclrtSynchronizeEvent", end)
    call("aclrtEventElapsedTime", ctypes.byref(ms), start, end)
    assert 45 < ms.value < 5000
    call("aclrtRecordEvent", untimed, s)
    assert error_of("aclrtEventElapsedTime", ctypes.byref(ms), start, untimed) == 107006
    """)


def test_waiting_with_a_time_limit(acl: RunAcl) -> None:
    acl("""
    gate, s, e = threading.Event(), stream(), event()
    enqueue(s, lambda: gate.wait() and None)
    call("aclrtRecordEvent", e, s)
    began = time.time()
    assert error_of("aclrtSynchronizeStreamWithTimeout", s, 50) == 507046
    assert error_of("aclrtSynchronizeDeviceWithTimeout", 50) == 507046
    assert error_of("aclrtSynchronizeEventWithTimeout", e, 50) == 507047
    assert 0.14 < time.time() - began < 20
    gate.set()
    call("aclrtSynchronizeStreamWithTimeout", s, 10000)
    """)


def test_a_failed_stream_stays_failed_until_the_device_is_reset(acl: RunAcl) -> None:
    acl("""
    s, other, e, seen = stream(), stream(), event(), []
    device, pinned = device_memory(8), pinned_memory(8)
    def broken():
        return library.npusim_error(507015, b"EZ9999: kernel %s broke", b"aten::mm")
    enqueue(s, broken)
    call("aclrtSynchronizeStreamWithTimeout", other, 100)
    for _ in range(2):
        try:
            call("aclrtSynchronizeStream", s)
        except AclError as error:
            assert error.code == 507015 and "EZ9999: [PID: " in str(error) and "aten::mm broke" in str(error), error
        else:
            raise AssertionError("the stream did not fail")
    assert error_of("npusim_stream_enqueue", s, Task(lambda _: seen.append(1) or 0), 0) == 507015
    write(pinned, b"x")
    assert error_of("aclrtMemcpyAsync", device, 8, pinned, 1, HOST_TO_DEVICE, s) == 507015
    call("aclrtRecordEvent", e, s)
    call("aclrtStreamWaitEvent", other, e)
    assert error_of("aclrtSynchronizeStream", other) == 507015
    assert read(device, 1) == b"\\0" and not seen
    call("aclrtResetDevice", 0)
    call("aclrtSetDevice", 0)
    call("aclrtSynchronizeStream", s)
    """)


def test_destroying_streams_with_work_on_them(acl: RunAcl) -> None:
    acl("""
    done, gate = [], threading.Event()
    gentle, forced = stream(), stream()
    enqueue(gentle, lambda: time.sleep(0.05) or done.append("gentle"))
    call("aclrtDestroyStream", gentle)
    assert done == ["gentle"] and error_of("aclrtSynchronizeStream", gentle) == 107000
    enqueue(forced, lambda: gate.wait() and None)
    enqueue(forced, lambda: done.append("never"))
    time.sleep(0.05)
    call("aclrtDestroyStreamForce", forced)
    gate.set()
    time.sleep(0.05)
    assert done == ["gentle"]
    """)


def test_host_functions_run_in_order(acl: RunAcl) -> None:
    acl("""
    s, seen = stream(), []
    device, pinned = device_memory(8), pinned_memory(8)
    HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    look = HostFunction(lambda _: seen.append(read(device, 1)))
    for letter in (b"a", b"b"):
        write(pinned, letter)
        call("aclrtMemcpyAsync", device, 8, pinned, 1, HOST_TO_DEVICE, s)
        call("aclrtLaunchHostFunc", s, look, None)
        call("aclrtSynchronizeStream", s)
    assert seen == [b"a", b"b"]
    """)


def test_many_threads_share_streams(acl: RunAcl) -> None:
    acl("""
    size, streams, events = 4096, [stream() for _ in range(4)], [event() for _ in range(4)]
    source, target = pinned_memory(size), [device_memory(size) for _ in range(4)]
    ctypes.memset(source, 1, size)
    def work(number):
        call("aclrtSetDevice", 0)
        for i in range(400):
            mine, other = streams[(number + i) % 4], streams[(number + i + 1) % 4]
            call("aclrtMemcpyAsync", target[number], size, source, size, HOST_TO_DEVICE, mine)
            call("aclrtRecordEvent", events[number], mine)
            call("aclrtStreamWaitEvent", other, events[number])
            if i % 7 == 0:
                call("aclrtSynchronizeStream", other)
                assert read(target[number], size) == b"\\1" * size
                call("aclrtMemset", target[number], size, 0, size)
            if i % 50 == 0:
                call("aclrtDestroyStream", stream())
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [each.start() for each in threads]; [each.join() for each in threads]
    call("aclrtSynchronizeDevice")
    """)


def test_a_forked_child_lives_without_the_parents_threads(acl: RunAcl) -> None:
    acl("""
    gate, s = threading.Event(), stream()
    enqueue(s, lambda: gate.wait() and None)
    enqueue(s, lambda: None)
    child = os.fork()
    if not child:
        call("aclrtSynchronizeDevice")
        call("aclrtFree", device_memory(MIB))
        call("aclrtDestroyStream", s)
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    gate.set()
    call("aclrtSynchronizeStream", s)
    """)


def test_a_process_ends_with_work_that_never_ends(acl: RunAcl) -> None:
    began = time.monotonic()
    acl("""
    s, never = stream(), threading.Event()
    enqueue(s, lambda: never.wait(30) and None)
    device, pinned = device_memory(8), pinned_memory(8)
    call("aclrtMemcpyAsync", device, 8, pinned, 1, HOST_TO_DEVICE, s)
    call("aclrtFree", device)
    call("aclrtFreeHost", pinned)
    call("aclrtResetDevice", 0)
    call("aclFinalize")
    """)
    assert time.monotonic() - began < 15


PHYSICAL = """
class Property(ctypes.Structure):
    _fields_ = [("handle", ctypes.c_int), ("allocation", ctypes.c_int), ("attribute", ctypes.c_int),
                ("device", ctypes.c_uint32), ("location", ctypes.c_int), ("reserve", ctypes.c_uint64)]
def physical(size):
    return get("aclrtMallocPhysical", size, ctypes.byref(Property(location=1)), 0)
"""


def test_addresses_and_memory_apart(acl: RunAcl) -> None:
    acl(
        PHYSICAL
        + """
size, (free, total) = 2 * MIB, memory_info()
base = get("aclrtReserveMemAddress", 1 << 40, 0, None, 1)
parts = [physical(size), physical(size)]
assert memory_info()[0] == free - 2 * size
for i, part in enumerate(parts):
    call("aclrtMapMem", base + i * size, size, 0, part, 0)
write(base + size - 2, b"over")
assert read(base + size - 2, 4) == b"over"
call("aclrtMapMem", base + 2 * size, size, 0, parts[0], 0)
assert read(base + 3 * size - 2, 2) == b"ov"
for i in range(3):
    call("aclrtUnmapMem", base + i * size)
for part in parts:
    call("aclrtFreePhysical", part)
call("aclrtReleaseMemAddress", base)
assert memory_info()[0] == free and error_of("aclrtReleaseMemAddress", base) == 107000
too_much = ctypes.byref(ctypes.c_void_p()), total, ctypes.byref(Property(location=1)), 0
assert error_of("aclrtMallocPhysical", *too_much) == 207001
"""
    )


def test_memory_is_shared_with_other_processes(acl: RunAcl) -> None:
    before = set(Path("/dev/shm").iterdir())
    importer = """
    import os, sys
    from acl import *
    call("aclInit", None); call("aclrtSetDevice", 1)
    memory = get("aclrtIpcMemImportByKey", sys.argv[1].encode(), 1)
    again = get("aclrtIpcMemImportByKey", sys.argv[1].encode(), 1)
    assert memory == again and read(memory, 5) == b"hello", read(memory, 5)
    write(memory, b"world")
    call("aclrtMemset", memory + 8 * MIB, 8 * MIB, 0, 8 * MIB)
    call("aclrtIpcMemClose", sys.argv[1].encode()); call("aclrtIpcMemClose", sys.argv[1].encode())
    part = get("aclrtMemImportFromShareableHandle", int(sys.argv[2]), 1, out=2)
    base = get("aclrtReserveMemAddress", 2 * MIB, 0, None, 1)
    call("aclrtMapMem", base, 2 * MIB, 0, part, 0)
    assert read(base, 4) == b"part"
    """
    exporter = (
        PHYSICAL
        + """
import subprocess, textwrap
memory = device_memory(16 * MIB)
write(memory, b"hello"); ctypes.memset(memory + 8 * MIB, 3, 8 * MIB)
key = ctypes.create_string_buffer(65)
call("aclrtIpcMemGetExportKey", memory, 16 * MIB, key, 65, 1)
base, part = get("aclrtReserveMemAddress", 2 * MIB, 0, None, 1), physical(2 * MIB)
call("aclrtMapMem", base, 2 * MIB, 0, part, 0)
write(base, b"part")
handle = get("aclrtMemExportToShareableHandle", part, 0, 1, out=3)
subprocess.run([sys.executable, "-c", textwrap.dedent(sys.argv[1]), key.value.decode(), str(handle)], check=True)
assert read(memory, 6) == b"world\\0" and not any(read(memory + 8 * MIB, 8 * MIB))
call("aclrtFree", memory)
assert error_of("aclrtIpcMemImportByKey", ctypes.byref(ctypes.c_void_p()), key, 1) == 107000
"""
    )
    acl(exporter, importer)
    assert set(Path("/dev/shm").iterdir()) <= before


def test_events_are_shared_with_other_processes(acl: RunAcl) -> None:
    other = """
    import sys
    from acl import *
    call("aclInit", None); call("aclrtSetDevice", 1)
    Handle = ctypes.c_char * 64
    class ByValue(ctypes.Structure):
        _fields_ = [("text", Handle)]
    e, s, done = get("aclrtIpcOpenEventHandle", ByValue(sys.argv[1].encode()), out=1), stream(), []
    status = lambda: get("aclrtQueryEventStatus", e, kind=ctypes.c_int, out=1)
    call("aclrtStreamWaitEvent", s, e)
    enqueue(s, lambda: done.append(1))
    assert status() == 0 and error_of("aclrtSynchronizeEventWithTimeout", e, 30) == 507047 and not done
    print("waiting", flush=True)
    call("aclrtSynchronizeStream", s)
    assert status() == 1 and done == [1]
    call("aclrtRecordEvent", e, s)
    """
    acl(
        """
    import subprocess, textwrap
    gate, s, e, handle = threading.Event(), stream(), event(64), ctypes.create_string_buffer(64)
    call("aclrtIpcGetEventHandle", e, handle)
    enqueue(s, lambda: gate.wait() and None)
    call("aclrtRecordEvent", e, s)
    command = [sys.executable, "-c", textwrap.dedent(sys.argv[1]), handle.value.decode()]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "waiting\\n"
    gate.set()
    assert child.wait() == 0
    call("aclrtSynchronizeEvent", e)
    assert error_of("aclrtIpcGetEventHandle", event(), handle) == 107000
    """,
        other,
    )


def test_faults_come_at_their_time(acl: RunAcl) -> None:
    code = """
    class Fault(ctypes.Structure):
        _fields_ = [("kind", ctypes.c_int), ("code", ctypes.c_int)]
    library.npusim_next_fault.restype = Fault
    NONE, OUT_OF_MEMORY, ACL, TIMEOUT, KILL, BITFLIP = range(6)
    KERNEL, COLLECTIVE = 1, 2
    def next_fault(event, name):
        fault = library.npusim_next_fault(event, name)
        return (fault.kind, fault.code) if fault.kind == ACL else fault.kind
    device_memory(8)
    for _ in range(3):  # the retries of an allocator that empties its cache and tries again
        assert error_of("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 8, 0) == 207001
    memory_info()
    device_memory(8)
    names = b"aten::add", b"aten::mm", b"aten::mm", b"aten::relu", b"aten::relu"
    kernels = [next_fault(KERNEL, name) for name in names]
    assert kernels == [NONE, NONE, (ACL, 507015), (ACL, 507018), BITFLIP], kernels
    s = stream()
    library.npusim_stream_fail(ctypes.c_void_p(s), 507018)
    try:
        call("aclrtSynchronizeStream", s)
    except AclError as error:
        assert error.code == 507018 and "EZ9999" in str(error) and "aten::relu" in str(error), error
    else:
        raise AssertionError("the stream did not fail")
    assert [next_fault(COLLECTIVE, b"HcclAllReduce") for _ in range(3)] == [NONE, TIMEOUT, NONE]
    """
    faults = "oom@2; acl=507015@aten::mm:2;acl=507018@4;bitflip@aten::relu:2;timeout@2;kill@1,rank=1;oom@1,rank=3"
    acl(code, NPUKIT_SIM_FAULTS=faults, RANK="0")
    killed = "library.npusim_next_fault(1, b'aten::add')"
    acl(killed, NPUKIT_SIM_FAULTS="kill@1,rank=1", RANK="1", exit_code=-9)


@pytest.mark.parametrize(
    "bad", ["oom", "oom@0", "oom@x", "acl=@1", "bitflip@3", "timeout@a:1", "kill@1,rank=", "nonsense@1"]
)
def test_a_malformed_fault_is_refused(acl: RunAcl, bad: str) -> None:
    errors = acl("", NPUKIT_SIM_FAULTS=bad, exit_code=2).stderr
    assert "NPUKIT_SIM_FAULTS" in errors
    assert f'"{bad}"' in errors


def test_operators_that_cannot_be_loaded_are_reported(acl: RunAcl) -> None:
    code = "from acl import *\nprint(error_of('aclInit', None))"
    result = acl(code, prepared=False, NPUKIT_SIM_OPERATORS="/nowhere/operators.so")
    assert result.stdout == "507000\n"
    assert "/nowhere/operators.so" in result.stderr
