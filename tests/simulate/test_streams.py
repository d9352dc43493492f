"""Streams, events and threads of the simulated CANN runtime."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

RunAcl = Callable[..., subprocess.CompletedProcess[str]]


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
    deadline = time.monotonic() + 60
    while (seen := read(pinned, 3)) != b"new":
        assert time.monotonic() < deadline, seen
        time.sleep(0.001)
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
