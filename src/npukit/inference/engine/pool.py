"""The blocks of the key/value cache: who holds which, and which prefixes of prompts are still in them."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

# Rows that only fill up a batch write here; nobody reads it.
NOWHERE = 0


class BlockPool:
    """Blocks of `size` tokens each. A freed block keeps what is in it until it is needed, so that the next prompt
    with the same beginning can go on from there; the one that was freed first is taken first.

    >>> pool = BlockPool(count=5, size=16)
    >>> pool.take(2)
    [1, 2]
    >>> pool.free
    2
    """

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.forget()

    def forget(self) -> None:
        """Begin anew: nobody holds a block, and nothing is in any."""
        self._holders = [0] * self.count
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NOWHERE + 1, self.count))
        self._known: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    @property
    def used(self) -> int:
        """How many blocks somebody holds."""
        return self.count - 1 - self.free

    def take(self, count: int) -> list[int] | None:
        """That many blocks with nothing in them, or None where there are not so many."""
        if count > self.free:
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._holders[block] = 1
            if (key := self._keys.pop(block, None)) is not None:
                del self._known[key]
        return blocks

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """The blocks in which the longest known beginning of these keys lies; nobody holds them for that yet."""
        blocks = []
        for key in keys:
            if (block := self._known.get(key)) is None:
                break
            blocks.append(block)
        return blocks

    def hold(self, blocks: Sequence[int]) -> None:
        """Count one more holder of each block."""
        for block in blocks:
            self._holders[block] += 1
            self._free.pop(block, None)

    def release(self, blocks: Sequence[int]) -> None:
        """Count one holder less. The end of a prompt is forgotten before its beginning, which more prompts share."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None

    def remember(self, block: int, key: bytes) -> None:
        """Say what is in a block; where another one has the same, that one is enough."""
        if key not in self._known and block not in self._keys:
            self._known[key] = block
            self._keys[block] = key

    def unused(self, blocks: Iterable[int]) -> int:
        """How many of these blocks count as free."""
        return sum(not self._holders[block] for block in blocks)


def key_of(parent: bytes, tokens: Sequence[int]) -> bytes:
    """What names a block: its tokens and all that came before. Nobody can make two prompts that share one.

    >>> key_of(b"", [1, 2]) == key_of(b"", [2, 1])
    False
    """
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()
