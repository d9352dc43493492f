"""The blocks of the key/value cache: how many sequences use each, and which hold a prefix that can be reused."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

# Padding tokens are written to this block; nothing reads it.
NULL_BLOCK = 0


class BlockPool:
    """Blocks of `block_size` tokens each. A freed block keeps its content until it is allocated again, so that the next
    prompt with the same prefix can reuse it. The block that was freed first is allocated first.

    >>> pool = BlockPool(num_blocks=5, block_size=16)
    >>> pool.allocate(2)
    [1, 2]
    >>> pool.num_free
    2
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.reset()

    def reset(self) -> None:
        """Free all blocks and forget what is in them."""
        self._ref_counts = [0] * self.num_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(NULL_BLOCK + 1, self.num_blocks))
        self._cached: dict[bytes, int] = {}  # block by hash
        self._hashes: dict[int, bytes] = {}  # hash by block

    @property
    def num_free(self) -> int:
        """How many blocks no sequence uses."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """How many blocks are in use."""
        return self.num_blocks - 1 - self.num_free

    def allocate(self, count: int) -> list[int] | None:
        """That many empty blocks, or None if there are too few."""
        if count > self.num_free:
            return None
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._ref_counts[block] = 1
            if (key := self._hashes.pop(block, None)) is not None:
                del self._cached[key]
        return blocks

    def find_cached(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks that hold the longest cached prefix. `touch` them before anything else is allocated."""
        blocks = []
        for key in hashes:
            if (block := self._cached.get(key)) is None:
                break
            blocks.append(block)
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Count one more user of each block."""
        for block in blocks:
            self._ref_counts[block] += 1
            self._free.pop(block, None)

    def free(self, blocks: Sequence[int]) -> None:
        """Count one user less. The end of a prompt is reused before its beginning, which more prompts share."""
        for block in reversed(blocks):
            self._ref_counts[block] -= 1
            if not self._ref_counts[block]:
                self._free[block] = None

    def cache(self, block: int, key: bytes) -> None:
        """Register a full block under its hash, unless another block has the same content."""
        if key not in self._cached and block not in self._hashes:
            self._cached[key] = block
            self._hashes[block] = key

    def count_free(self, blocks: Iterable[int]) -> int:
        """How many of these blocks no sequence uses."""
        return sum(not self._ref_counts[block] for block in blocks)


def hash_block(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a block's tokens and, through its parent's hash, of all tokens before them. It is cryptographic:
    nobody can make two prompts that share one.

    >>> hash_block(b"", [1, 2]) == hash_block(b"", [2, 1])
    False
    """
    return blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()
