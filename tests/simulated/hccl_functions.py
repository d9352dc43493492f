"""HCCL's C functions between forked ranks, without torch: what torch.distributed does not reach, and what goes wrong.

Run with the name of a scenario; it fails with a traceback. HOSTS names network namespaces to spread the ranks over.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hosts import enter

TIMEOUT, FAILED = 507048, 507049
E_PARA, E_NOT_SUPPORT, E_NOT_FOUND, E_TIMEOUT, E_REMOTE = 1, 5, 6, 9, 21
INT8, INT16, INT32, FP16, FP32, INT64, UINT64, UINT8, UINT16, UINT32, FP64, BFP16 = range(12)
FP8E4M3 = 15
SUM, PROD, MAX, MIN = range(4)
CODES = {INT8: "b", INT16: "h", INT32: "i", FP16: "e", FP32: "f", INT64: "q", UINT64: "Q", UINT8: "B"}
CODES |= {UINT16: "H", UINT32: "I", FP64: "d"}

fork = multiprocessing.get_context("fork")


class Buffer:
    """Numbers in memory that the device can reach, which is any."""

    def __init__(self, kind: int, numbers: Sequence[float]) -> None:
        self.kind, self.format = kind, f"{len(numbers)}{CODES[kind]}"
        self.memory = ctypes.create_string_buffer(struct.pack(self.format, *numbers) or b"\0")

    @property
    def numbers(self) -> list[Any]:
        return list(struct.unpack_from(self.format, self.memory))


class Rank:
    """One process of a communicator, with a stream."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.acl = ctypes.CDLL("libascendcl.so", mode=ctypes.RTLD_GLOBAL)
        self.acl.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self.hccl = ctypes.CDLL("libhccl.so")
        assert self.acl.aclInit(None) == 0 and self.acl.aclrtSetDevice(0) == 0
        self.comm = ctypes.c_void_p()
        self.stream = self.new_stream()

    def new_stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        assert self.acl.aclrtCreateStream(ctypes.byref(stream)) == 0
        return stream

    def connect(self, root_info: bytes) -> int:
        return int(self.hccl.HcclCommInitRootInfo(self.ranks, root_info, self.rank, ctypes.byref(self.comm)))

    def issue(self, name: str, *arguments: Any, stream: ctypes.c_void_p | None = None) -> int:
        passed = [argument.memory if isinstance(argument, Buffer) else argument for argument in arguments]
        passed = [ctypes.c_uint64(argument) if isinstance(argument, int) else argument for argument in passed]
        return int(self.hccl[name](*passed, self.comm, stream or self.stream))

    def synchronize(self) -> int:
        return int(self.acl.aclrtSynchronizeStream(self.stream))

    def call(self, name: str, *arguments: Any) -> int:
        return self.issue(name, *arguments) or self.synchronize()

    def message(self) -> str:
        return (self.acl.aclGetRecentErrMsg() or b"").decode()


def root_info(rank: Rank, queue: Any) -> bytes:
    if rank.rank:
        return bytes(queue.get())
    info = ctypes.create_string_buffer(4108)
    assert rank.hccl.HcclGetRootInfo(info) == 0
    for _ in range(1, rank.ranks):
        queue.put(info.raw)
    return info.raw


def start(ranks: int, body: Callable[[Rank], Any], connected: bool = True) -> list[Any]:
    """Run `body` in every rank; what each returned, or None where it died."""
    infos, results = fork.SimpleQueue(), [fork.Pipe(duplex=False) for _ in range(ranks)]

    def run(number: int) -> None:
        if "HOSTS" in os.environ:
            hosts = os.environ["HOSTS"].split(",")
            enter(hosts[number % len(hosts)])
        os.environ["RANK"] = str(number)
        rank = Rank(number, ranks)
        if connected:
            assert rank.connect(root_info(rank, infos)) == 0
        else:
            rank.infos = infos
        results[number][1].send(body(rank))

    processes = [fork.Process(target=run, args=(number,)) for number in range(ranks)]
    for process in processes:
        process.start()
    returned = []
    for process, (reader, writer) in zip(processes, results, strict=True):
        process.join(40)
        writer.close()
        assert process.exitcode is not None, "a rank hangs"
        assert process.exitcode in (0, -signal.SIGKILL), f"a rank ended with {process.exitcode}"
        returned.append(reader.recv() if process.exitcode == 0 else None)
    return returned


def rank_table(ranks: int, **changed: Any) -> str:
    """A rank table for the hosts there are, as a file."""
    servers = 2 if "HOSTS" in os.environ else 1
    devices = [
        {"device_id": str(rank), "device_ip": f"192.168.100.{rank}", "rank_id": str(rank)} for rank in range(ranks)
    ]
    table = {
        "version": "1.0",
        "server_count": str(servers),
        "server_list": [
            {"device": devices[number::servers], "server_id": f"10.77.0.{number + 1}"} for number in range(servers)
        ],
        "status": "completed",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump({**table, **changed}, file)
    return file.name


def rank_tables() -> None:
    os.environ["HCCL_IF_BASE_PORT"] = "61010"  # one that the system gives to no other connection
    file, broken = rank_table(3), rank_table(3, server_list=[{"server_id": "a", "device": [{"rank_id": "1"}]}])

    def body(rank: Rank) -> None:
        assert rank.hccl.HcclCommInitClusterInfo(broken.encode(), rank.rank, ctypes.byref(rank.comm)) == E_PARA
        assert "EI0004" in rank.message()
        assert rank.hccl.HcclCommInitClusterInfo(file.encode(), rank.rank, ctypes.byref(rank.comm)) == 0
        own = Buffer(INT32, [rank.rank + 1])
        assert rank.call("HcclAllReduce", own, own, 1, INT32, SUM) == 0 and own.numbers == [6]

    start(3, body, connected=False)
    Path(file).unlink()
    Path(broken).unlink()


def every_type_and_operation() -> None:
    reference = {SUM: lambda a, b: a + b, PROD: lambda a, b: a * b, MAX: max, MIN: min}

    def body(rank: Rank) -> None:
        for kind in CODES:
            for operation, combine in reference.items():
                for size in (5, 6000):  # in one step, and in parts
                    own = [[(i + r) % 4 for i in range(size)] for r in range(rank.ranks)]
                    buffer = Buffer(kind, own[rank.rank])
                    assert rank.call("HcclAllReduce", buffer, buffer, size, kind, operation) == 0
                    assert buffer.numbers == [combine(combine(a, b), c) for a, b, c in zip(*own, strict=True)]

    start(3, body)


def v_forms() -> None:
    def body(rank: Rank) -> None:
        counts, offsets = [3, 0, 5], [10, 0, 4]
        table, where = Buffer(UINT64, counts), Buffer(UINT64, offsets)
        gathered, own = Buffer(INT32, [0] * 13), Buffer(INT32, [rank.rank + 1] * counts[rank.rank])
        assert rank.call("HcclAllGatherV", own, counts[rank.rank], gathered, table, where, INT32) == 0
        assert gathered.numbers == [0] * 4 + [3] * 5 + [0] + [1] * 3

        parts, reduced = Buffer(INT32, range(13)), Buffer(INT32, [0] * counts[rank.rank])
        assert rank.call("HcclReduceScatterV", parts, table, where, reduced, counts[rank.rank], INT32, SUM) == 0
        assert reduced.numbers == [3 * (offsets[rank.rank] + i) for i in range(counts[rank.rank])]

        matrix = [[1, 2, 0], [0, 3, 1], [2, 0, 4]]
        sent = Buffer(INT32, [rank.rank * 10 + to for to in range(3) for _ in range(matrix[rank.rank][to])])
        received = Buffer(INT32, [0] * sum(row[rank.rank] for row in matrix))
        flat = Buffer(UINT64, [count for row in matrix for count in row])
        assert rank.call("HcclAlltoAllVC", sent, flat, INT32, received, INT32) == 0
        expected = [source * 10 + rank.rank for source in range(3) for _ in range(matrix[source][rank.rank])]
        assert received.numbers == expected

        both = Buffer(INT32, [rank.rank * 10 + to for to in range(3)])
        assert rank.call("HcclAlltoAll", both, 1, INT32, both, 1, INT32) == 0  # in place
        assert both.numbers == [rank.rank, 10 + rank.rank, 20 + rank.rank]
        assert rank.call("HcclBarrier") == 0

    start(3, body)


def one_process_with_several_cards() -> None:
    def body(rank: Rank) -> None:
        comms = (ctypes.c_void_p * 3)()
        assert rank.hccl.HcclCommInitAll(3, None, comms) == 0
        buffers, streams = [Buffer(INT64, [i + 1] * 20_000) for i in range(3)], [rank.new_stream() for _ in range(3)]
        for comm, buffer, stream in zip(comms, buffers, streams, strict=True):
            rank.comm = ctypes.c_void_p(comm)
            assert rank.issue("HcclAllReduce", buffer, buffer, 20_000, INT64, SUM, stream=stream) == 0
        for buffer, stream in zip(buffers, streams, strict=True):
            assert rank.acl.aclrtSynchronizeStream(stream) == 0 and set(buffer.numbers) == {6}

    start(1, body, connected=False)


def two_ranks_in_one_process() -> None:
    """Each closes a descriptor of its own: one that somebody else opened meanwhile stays open."""

    def body(rank: Rank) -> None:
        info, comms = ctypes.create_string_buffer(8192), [ctypes.c_void_p(), ctypes.c_void_p()]
        assert rank.hccl.HcclGetRootInfo(info) == 0
        joining = [
            threading.Thread(target=rank.hccl.HcclCommInitRootInfo, args=(2, info, number, ctypes.byref(comm)))
            for number, comm in enumerate(comms)
        ]
        for thread in joining:
            thread.start()
        for thread in joining:
            thread.join()
        open_before = len(list(Path("/proc/self/fd").iterdir()))
        assert all(comms) and rank.hccl.HcclCommDestroy(comms[0]) == 0
        other = os.open(os.devnull, os.O_RDONLY)
        assert rank.hccl.HcclCommDestroy(comms[1]) == 0
        os.fstat(other)
        os.close(other)
        assert len(list(Path("/proc/self/fd").iterdir())) == open_before - 2, "nothing is left open"

    start(1, body, connected=False)


def sub_communicators() -> None:
    def body(rank: Rank) -> None:
        whole = rank.comm
        for members in ([2, 0], [1, 2], [2, 0], [0, 1, 2]):
            sub = ctypes.c_void_p()
            if rank.rank in members:
                ids, place = (ctypes.c_uint32 * len(members))(*members), members.index(rank.rank)
                arguments = (len(members), ids, ctypes.c_uint64(7), place, None, ctypes.byref(sub))
                assert rank.hccl.HcclCreateSubCommConfig(ctypes.byref(whole), *arguments) == 0
                rank.comm, buffer = sub, Buffer(INT32, [10**rank.rank])
                assert rank.call("HcclAllReduce", buffer, buffer, 1, INT32, SUM) == 0
                assert buffer.numbers == [sum(10**member for member in members)]
                assert rank.hccl.HcclCommDestroy(sub) == 0

    start(3, body)


def issue_order_over_streams() -> None:
    def body(rank: Rank) -> None:
        streams = [rank.new_stream() for _ in range(4)]
        buffers = [Buffer(INT32, [rank.rank + i] * (1 + i * 1000)) for i in range(40)]
        for i, buffer in enumerate(buffers):
            stream = streams[(i * 7 + rank.rank) % 4]  # every rank takes other streams
            count = 1 + i * 1000
            assert rank.issue("HcclAllReduce", buffer, buffer, count, INT32, SUM, stream=stream) == 0
        for stream in streams:
            assert rank.acl.aclrtSynchronizeStream(stream) == 0
        assert all(set(buffer.numbers) == {1 + 2 * i} for i, buffer in enumerate(buffers))

    start(2, body)


def groups_of_sends_and_receives() -> None:
    def body(rank: Rank) -> None:
        other, size = 1 - rank.rank, 300_000  # more than is ever under way at once
        sent, received = Buffer(INT32, [rank.rank + 5] * size), Buffer(INT32, [0] * size)
        assert rank.hccl.HcclGroupStart() == 0
        assert rank.issue("HcclSend", sent, size, INT32, other) == 0
        assert rank.issue("HcclRecv", received, size, INT32, other) == 0
        assert rank.hccl.HcclGroupEnd() == 0 and rank.synchronize() == 0
        assert set(received.numbers) == {other + 5}

    start(2, body)


def disagreement() -> None:
    def body(rank: Rank) -> tuple[int, str]:
        size = 5 if rank.rank == 1 else 4
        buffer = Buffer(FP32, [1.0] * size)
        return rank.call("HcclAllReduce", buffer, buffer, size, FP32, SUM), rank.message()

    for code, message in start(3, body):
        assert code == FAILED and "EI0005" in message and "count" in message, (code, message)
        assert "[5]" in message and "[4]" in message, message

    def other_call(rank: Rank) -> tuple[int, str]:
        buffer, out = Buffer(FP32, [1.0]), Buffer(FP32, [0.0] * 3)
        if rank.rank == 2:
            return rank.call("HcclBroadcast", buffer, 1, FP32, 0), rank.message()
        return rank.call("HcclAllGather", buffer, out, 1, FP32), rank.message()

    for code, message in start(3, other_call):
        assert code == FAILED and "Broadcast" in message and "AllGather" in message, (code, message)


def a_rank_that_never_comes() -> None:
    os.environ["HCCL_EXEC_TIMEOUT"] = "1"

    def body(rank: Rank) -> tuple[int, str, int] | None:
        if rank.rank == 1:
            time.sleep(3)
            return None
        buffer, error = Buffer(FP32, [1.0]), ctypes.c_int()
        code = rank.call("HcclAllReduce", buffer, buffer, 1, FP32, SUM)
        message = rank.message()
        rank.hccl.HcclGetCommAsyncError(rank.comm, ctypes.byref(error))
        assert rank.hccl.HcclCommResume(rank.comm) == E_NOT_SUPPORT
        return code, message, error.value

    results = start(3, body)
    for code, message, error in (results[0], results[2]):
        assert code == TIMEOUT and error == E_TIMEOUT and "EI0002" in message
        assert "remote rank [1]" in message and "AllReduce" in message


def a_rank_that_is_killed() -> None:
    size = 8 << 20

    def body(rank: Rank) -> tuple[int, str, float] | None:
        buffer = ctypes.create_string_buffer(4 * size)
        started = time.monotonic()
        rank.issue("HcclAllReduce", buffer, buffer, size, FP32, SUM)
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of it
        return rank.call("HcclAllReduce", buffer, buffer, size, FP32, SUM), rank.message(), time.monotonic() - started

    results = start(3, body)
    assert results[1] is None
    for code, message, seconds in (results[0], results[2]):
        assert code == TIMEOUT and "EI0002" in message and seconds < 10


def a_rank_that_is_done_and_gone() -> None:
    def body(rank: Rank) -> None:
        buffer = Buffer(INT32, [rank.rank] * 1000)
        if rank.rank == 1:
            time.sleep(1)  # rank 0 has ended by now
        assert rank.call("HcclBroadcast", buffer, 1000, INT32, 0) == 0 and set(buffer.numbers) == {0}
        if rank.rank == 0:
            assert rank.hccl.HcclCommDestroy(rank.comm) == 0

    start(2, body)


def ranks_that_do_not_meet() -> None:
    os.environ["HCCL_CONNECT_TIMEOUT"] = "1"

    def absent(rank: Rank) -> tuple[int, str] | None:
        info = root_info(rank, rank.infos)
        if rank.rank == 2:
            time.sleep(3)
            return None
        return rank.connect(info), rank.message()

    results = start(3, absent, connected=False)[:2]
    assert any(code == E_TIMEOUT and "2 of 3" in message and "[2]" in message for code, message in results)
    assert all(code == E_TIMEOUT or "given up" in message for code, message in results)

    def dead_root(rank: Rank) -> tuple[int, str, float] | None:
        info = root_info(rank, rank.infos)
        if rank.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic()
        return rank.connect(info), rank.message(), time.monotonic() - started

    code, message, seconds = start(2, dead_root, connected=False)[1]
    assert code == E_REMOTE and "has ended" in message and seconds < 0.9

    def same_rank(rank: Rank) -> int:
        info = root_info(rank, rank.infos)
        rank.rank = 0
        return rank.connect(info)

    assert E_PARA in start(2, same_rank, connected=False)


def which_interface() -> None:
    """The one that is not loopback, unless another is named; a wrong name is refused."""

    def body(rank: Rank) -> tuple[list[bytes], int, str]:
        info = ctypes.create_string_buffer(4108)
        results = []
        for name in ("", "lo", "=cable", "^cable", "c,x"):
            os.environ["HCCL_SOCKET_IFNAME"] = name
            os.environ["HCCL_IF_BASE_PORT"] = "61000"
            assert rank.hccl.HcclGetRootInfo(info) == 0
            results.append(info.raw[24:30])
        os.environ["HCCL_IF_IP"] = "10.99.0.1"
        return results, rank.hccl.HcclGetRootInfo(info), rank.message()

    cable, lo = bytes([10, 77, 0, 1]), bytes([127, 0, 0, 1])
    interfaces, code, message = start(1, body, connected=False)[0]
    assert [interface[:4] for interface in interfaces] == [cable, lo, cable, lo, cable]
    assert sorted(int.from_bytes(interface[4:], "big") for interface in interfaces) == [
        61000,
        61000,
        61001,
        61001,
        61002,
    ]
    assert code == E_NOT_FOUND and "EI0001" in message


def a_cable_that_is_cut() -> None:
    """Both sides end with the error of a rank that waits, within HCCL_EXEC_TIMEOUT."""

    def body(rank: Rank) -> tuple[int, str, float]:
        buffer = Buffer(FP32, [1.0] * 100_000)
        assert rank.call("HcclAllReduce", buffer, buffer, 100_000, FP32, SUM) == 0
        if rank.rank == 0:
            subprocess.run(["ip", "link", "set", "cable", "down"], check=True)
        started = time.monotonic()
        code = 0
        while not code:
            code = rank.call("HcclAllReduce", buffer, buffer, 100_000, FP32, SUM)
        return code, rank.message(), time.monotonic() - started

    for code, message, seconds in start(4, body):
        assert code == TIMEOUT and "EI0002" in message, message
        assert seconds < 10


def wrong_arguments() -> None:
    def body(rank: Rank) -> None:
        buffer = Buffer(INT8, [0])
        assert rank.issue("HcclAllReduce", buffer, buffer, 1, FP8E4M3, SUM) == E_NOT_SUPPORT
        assert "cannot be reduced" in rank.message()
        assert rank.issue("HcclBroadcast", buffer, 1, INT8, 9) == E_PARA and "rank 9" in rank.message()
        assert rank.call("HcclBroadcast", buffer, 1, FP8E4M3, 0) == 0

    start(1, body)


def shapes_only() -> None:
    os.environ["NPUKIT_SIM_COMPUTE"] = "shapes"

    def body(rank: Rank) -> None:
        numbers, sizes = Buffer(FP32, [rank.rank + 1.0] * 50_000), Buffer(INT64, [rank.rank + 1])
        flags = Buffer(FP32, [float(rank.rank)])
        assert rank.call("HcclAllReduce", numbers, numbers, 50_000, FP32, SUM) == 0
        assert set(numbers.numbers) == {rank.rank + 1.0}, "nothing moves"
        assert rank.call("HcclAllReduce", sizes, sizes, 1, INT64, SUM) == 0
        assert rank.call("HcclAllReduce", flags, flags, 1, FP32, SUM) == 0
        assert (sizes.numbers, flags.numbers) == ([3], [1.0]), "but what steers programs does"

    start(2, body)


def a_timeout_on_request() -> None:
    os.environ["NPUKIT_SIM_FAULTS"] = "timeout@2"

    def body(rank: Rank) -> None:
        buffer = Buffer(FP32, [1.0])
        assert rank.call("HcclAllReduce", buffer, buffer, 1, FP32, SUM) == 0
        assert rank.call("HcclAllReduce", buffer, buffer, 1, FP32, SUM) == TIMEOUT
        assert "EI0002" in rank.message()

    start(2, body)


def a_slow_link() -> None:
    """Everybody feels it, also the ranks whose own links are good."""
    os.environ["NPUKIT_SIM_FAULTS"] = "slow-link=10,rank=1"

    def body(rank: Rank) -> float:
        buffer = Buffer(FP32, [1.0] * 1_000_000)
        started = time.monotonic()
        assert rank.call("HcclAllReduce", buffer, buffer, 1_000_000, FP32, SUM) == 0
        return time.monotonic() - started

    assert max(start(2, body)) > 0.4  # as long as its bytes take; who comes later waits less


def eight_ranks() -> None:
    def body(rank: Rank) -> float:
        buffer = Buffer(FP32, [1.0] * 256)
        assert rank.call("HcclBarrier") == 0
        started = time.monotonic()
        for _ in range(200):
            assert rank.issue("HcclAllReduce", buffer, buffer, 256, FP32, MAX) == 0
        assert rank.synchronize() == 0 and set(buffer.numbers) == {1.0}
        return time.monotonic() - started

    assert max(start(8, body)) < 5


if __name__ == "__main__":
    globals()[sys.argv[1]]()
