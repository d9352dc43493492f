"""Exchanges failures of ranks between the launchers of all nodes.

Without this, a node whose neighbour lost a rank would wait for HCCL's timeout, by default half an hour. The messages
are in torchrun's store on node 0, which stays open until all nodes have read them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from npukit.launch.failure import Failure, first

LOOK_EVERY = 0.5
# Seconds in which a failure of this node's ranks, perhaps the first, is noticed before all are ended
FAIL_BY_ITSELF = 3.0
WAIT_FOR_OTHERS = 3.0
NODE_0_LINGERS = 10.0
JOB_ENDS_EVERYWHERE = 5.0


class OtherNodes:
    """Watches the other nodes in a thread; when one fails, it sends this process a signal."""

    def __init__(self, endpoint: str, node: int, nodes: int) -> None:
        self.have_failed = False
        self._address, _, port = endpoint.rpartition(":")
        self._port = int(port)
        self._node = node
        self._nodes = nodes
        self._store: Store | None = None
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        try:
            store = TCPStore(
                self._address,
                self._port,
                is_master=self._node == 0,
                timeout=timedelta(minutes=15),
                wait_for_workers=False,
                multi_tenant=True,  # one server for torchrun and npukit
            )
            self._store = PrefixStore("npukit", store)
            others = [node for node in range(self._nodes) if node != self._node]
            while not any(self._store.check([f"failure/{node}"]) for node in others):
                time.sleep(LOOK_EVERY)
            time.sleep(FAIL_BY_ITSELF)
        except RuntimeError:
            # Node 0 has ended. If its part succeeded, this node is about to end too.
            self._store = None
            time.sleep(JOB_ENDS_EVERYWHERE)
        self.have_failed = True
        os.kill(os.getpid(), signal.SIGTERM)

    def exchange(self, own_failures: list[Failure]) -> list[Failure]:
        """The failures of all nodes that are known within a moment; empty if node 0 is gone.

        It runs in a thread, because the store blocks when the network is cut.
        """
        failures = {self._node: first(own_failures)} if own_failures else {}
        if self._store is None:
            return own_failures
        asking = threading.Thread(target=self._exchange, args=(self._store, failures), daemon=True)
        asking.start()
        asking.join(WAIT_FOR_OTHERS + NODE_0_LINGERS + 2)
        return list(failures.values())

    def _exchange(self, store: Store, failures: dict[int, Failure]) -> None:
        try:
            if mine := failures.get(self._node):
                store.set(f"failure/{self._node}", mine.to_json())
            deadline = time.monotonic() + WAIT_FOR_OTHERS
            while len(failures) < self._nodes and time.monotonic() < deadline:
                for node in set(range(self._nodes)) - set(failures):
                    if store.check([f"failure/{node}"]):
                        failures[node] = Failure.from_json(store.get(f"failure/{node}"))
                time.sleep(LOOK_EVERY)
            store.set(f"seen/{self._node}", "")
            deadline = time.monotonic() + NODE_0_LINGERS
            everybody = [f"seen/{node}" for node in range(self._nodes)]
            while self._node == 0 and not store.check(everybody) and time.monotonic() < deadline:
                time.sleep(LOOK_EVERY)
        except RuntimeError:
            pass
