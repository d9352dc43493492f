"""Devices, memory, sharing and faults of the simulated CANN runtime."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from npukit.simulate import environment

RunAcl = Callable[..., subprocess.CompletedProcess[str]]


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
call("aclrtMapMem", base + 3 * size, size, 0, parts[1], 0)  # elsewhere
write(base + 3 * size, b"again")
assert read(base + 3 * size, 5) == b"again"
call("aclrtUnmapMem", base + 3 * size)
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
