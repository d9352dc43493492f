"""Decides which requests take part in the next step.

A step decodes one token for every running request and computes some of the waiting prompts (prefill). Decoding is
bound by reading the weights, so a pass of a hundred tokens costs as much as a pass of one: where the device supports
it, chunks of prompts join the decoding pass (`max_num_mixed_tokens`). Many prompts at once are faster in a pass of
their own, up to `max_num_batched_tokens`. A prompt that is longer than that takes several passes, and leaves half of
each to shorter prompts if any wait.

If blocks run out, the youngest running request is preempted: it gives up its blocks and waits, and its tokens are
computed again later. No request fails, and no answer changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from npukit.inference.engine.pool import BlockPool, hash_block
from npukit.inference.engine.sequence import Sequence
from npukit.inference.engine.speculative import Proposer

# Up to this many tokens, a pass takes hardly longer than with one: it is bound by memory, not by arithmetic.
MEMORY_BOUND_TOKENS = 128
MEMORY_BOUND_TOKENS_ON_CPU = 16
_GRAPH_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96)


@dataclass(frozen=True)
class Chunk:
    """Tokens `start` to `stop` of a sequence, which are computed in one step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """Whether the sequence's next token is sampled after it."""
        return self.stop == self.sequence.num_prefill_tokens


class SchedulerOutput:
    """The work of one step: a pass with the next token (and draft tokens) of each sequence in `decodes` and the chunks
    in `mixed`, then a pass with the chunks in `prefills`. `sampled` are the sequences that get a token, in the order
    of the results.
    """

    def __init__(self, decodes: list[Sequence], mixed: list[Chunk], prefills: list[Chunk]) -> None:
        self.decodes, self.mixed, self.prefills = decodes, mixed, prefills
        self.sampled = decodes + [chunk.sequence for chunk in self.chunks if chunk.is_last]

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks of both passes."""
        return self.mixed + self.prefills


class Scheduler:
    """Keeps the waiting and the running requests, oldest first, and assigns rows and blocks to them.

    `max_num_mixed_tokens` limits a pass of decoding and prompts; with 0, prompts have passes of their own. The
    `proposer` drafts tokens as long as the pass stays within `max_num_draft_tokens`.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_prefix_caching: bool = True,
        max_num_mixed_tokens: int = 0,
        proposer: Proposer | None = None,
        max_num_draft_tokens: int = MEMORY_BOUND_TOKENS,
    ) -> None:
        self.pool, self.proposer = pool, proposer
        self.max_num_batched_tokens, self.max_num_mixed_tokens = max_num_batched_tokens, max_num_mixed_tokens
        self.enable_prefix_caching, self.max_num_draft_tokens = enable_prefix_caching, max_num_draft_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.cached_tokens = self.preemptions = 0
        self._free_rows = list(range(max_num_seqs))[::-1]

    def schedule(self) -> SchedulerOutput:
        """Choose the work of the next step; from here on it counts as computed."""
        decodes = self._schedule_decodes()
        self._add_draft_tokens(decodes)
        budget = self._mixed_prefill_budget(sum(1 + len(sequence.draft_tokens) for sequence in decodes))
        chunks = self._schedule_prefills(budget or self.max_num_batched_tokens)
        step = SchedulerOutput(decodes, chunks, []) if budget else SchedulerOutput(decodes, [], chunks)
        for sequence in step.decodes:
            sequence.num_computed_tokens += 1 + len(sequence.draft_tokens)
        for sequence in step.sampled:
            sequence.num_in_flight += 1
        return step

    def finish(self, sequence: Sequence) -> None:
        """Remove a sequence, whether it is running or waiting."""
        if sequence.row >= 0:
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def reset_prefix_cache(self) -> None:
        """Forget what was computed with other weights; nothing may be running."""
        assert not self.running and not self.waiting
        self.pool.reset()

    def cache_full_blocks(self, sequence: Sequence) -> None:
        """Register the blocks that are full, so that later prompts can reuse them."""
        if not self.enable_prefix_caching or sequence.row < 0:
            return
        full = min(sequence.num_computed_tokens, len(sequence.tokens)) // self.pool.block_size
        hashes = self._block_hashes(sequence, full)
        for index in range(sequence.num_cached_blocks, full):
            self.pool.cache(sequence.blocks[index], hashes[index])
        sequence.num_cached_blocks = full

    def _schedule_decodes(self) -> list[Sequence]:
        decodes: list[Sequence] = []
        for sequence in list(self.running):  # oldest first
            computed = sequence.num_computed_tokens
            if computed < sequence.num_prefill_tokens or computed >= sequence.max_len - 1:
                continue  # its prompt is not done, or its last token is in flight
            if sequence.row < 0 or (sequence.waits_for_tokens and sequence.num_in_flight):
                continue
            if computed < len(sequence.blocks) * self.pool.block_size or self._allocate_next(sequence, decodes):
                decodes.append(sequence)
        # Longest first: the device starts rows in this order, and should not be left with a long one at the end.
        return sorted(decodes, key=lambda sequence: -sequence.num_computed_tokens)

    def _add_draft_tokens(self, decodes: list[Sequence]) -> None:
        """Fill the pass with draft tokens. They may use free blocks, which they get before they are proposed, but never
        preempt anyone.
        """
        budget = self.max_num_draft_tokens - len(decodes)
        if self.proposer is None or budget <= 0:
            return
        drafted = [sequence for sequence in decodes if not sequence.waits_for_tokens][:budget]
        longest = self.proposer.num_speculative_tokens
        size, limits = self.pool.block_size, []
        for sequence in drafted:
            computed = sequence.num_computed_tokens
            limit = min(longest, sequence.max_len - computed - 2)
            missing = (computed + limit) // size + 1 - len(sequence.blocks)
            if missing > 0:
                sequence.blocks += self.pool.allocate(missing) or []
            limits.append(min(limit, len(sequence.blocks) * size - computed - 1))
        for sequence, draft in zip(drafted, self.proposer.propose(drafted, limits), strict=True):
            sequence.draft_tokens = draft[:budget]
            budget -= len(sequence.draft_tokens)

    def _allocate_next(self, sequence: Sequence, decodes: list[Sequence]) -> bool:
        """Allocate a sequence's next block, preempting the youngest for it; False if that was the sequence itself."""
        while sequence.num_computed_tokens // self.pool.block_size == len(sequence.blocks):
            if blocks := self.pool.allocate(1):
                sequence.blocks += blocks
            else:
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest in decodes:
                    decodes.remove(youngest)
                if youngest is sequence:
                    return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._release(sequence)
        sequence.num_computed_tokens = sequence.num_prefill_tokens = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.free(sequence.blocks)
        self._free_rows.append(sequence.row)
        sequence.row, sequence.blocks, sequence.num_cached_blocks = -1, [], 0
        sequence.features.clear()

    def _mixed_prefill_budget(self, decodes: int) -> int:
        """How many prompt tokens join the pass of `decodes`: as many as fit into it at no cost, or a quarter of those
        that wait, so that they do not pile up. 0 if they get a pass of their own.
        """
        pending = 0
        for sequence in self._pending_prompts():
            pending += sequence.num_pending_tokens
            if sequence.needs_own_pass:
                return 0
        size = padded(max(MEMORY_BOUND_TOKENS, decodes + pending // 4) if decodes else pending)
        return size - decodes if pending and size <= self.max_num_mixed_tokens else 0

    def _pending_prompts(self) -> Iterator[Sequence]:
        """The prompts that are partly computed, and as many of the waiting ones as there are free rows."""
        yield from (sequence for sequence in self.running if sequence.is_prefilling)
        yield from islice(self.waiting, len(self._free_rows))

    def _schedule_prefills(self, budget: int) -> list[Chunk]:
        """Continue prompts that are partly computed, then admit others, as far as the token budget and blocks go."""
        chunks = []
        limit = self.max_num_batched_tokens
        shorter = sum(sequence.num_pending_tokens <= limit for sequence in self._pending_prompts())
        started = deque(sequence for sequence in self.running if sequence.is_prefilling)
        while budget > 0:
            sequence = started.popleft() if started else self._admit()
            if sequence is None:
                break
            start, pending = sequence.num_computed_tokens, sequence.num_pending_tokens
            shorter -= pending <= limit
            share = -(-budget // 2) if pending > limit and shorter > 0 else budget
            stop = sequence.end_of_chunk(start + min(pending, share))
            chunks.append(Chunk(sequence, start, stop))
            budget -= stop - start
            sequence.num_computed_tokens = stop
            self.cache_full_blocks(sequence)  # a pass writes before it reads: the next prompt may share this prefix
        return chunks

    def _admit(self) -> Sequence | None:
        """Start the oldest waiting request, if there are a row and blocks for it."""
        if not self.waiting or not self._free_rows or self.waiting[0].num_in_flight:  # its last token is in flight
            return None
        sequence = self.waiting[0]
        prefix = self._find_cached_prefix(sequence)
        needed = -(-(len(sequence.tokens) + 1) // self.pool.block_size) - len(prefix)
        if needed > self.pool.num_free - self.pool.count_free(prefix):
            return None
        self.pool.touch(prefix)
        sequence.blocks = prefix + (self.pool.allocate(needed) or [])
        sequence.num_cached_blocks = len(prefix)
        sequence.num_prefill_tokens = len(sequence.tokens)
        sequence.num_computed_tokens = len(prefix) * self.pool.block_size
        self.cached_tokens += sequence.num_computed_tokens
        sequence.row = self._free_rows.pop()
        self.running.append(self.waiting.popleft())
        return sequence

    def _find_cached_prefix(self, sequence: Sequence) -> list[int]:
        """The blocks that can be reused. The last token is always computed, since the next one is sampled from it."""
        if not self.enable_prefix_caching or sequence.request.prompt_logprobs is not None:
            return []
        full = (len(sequence.tokens) - 1) // self.pool.block_size
        return self.pool.find_cached(islice(self._block_hashes(sequence, full), full))

    def _block_hashes(self, sequence: Sequence, count: int) -> list[bytes]:
        """The hashes of at least the first `count` blocks, each computed once."""
        hashes, size = sequence.block_hashes, self.pool.block_size
        for start in range(len(hashes) * size, count * size, size):
            parent = hashes[-1] if hashes else sequence.cache_salt
            if (media := sequence.request.media) is not None:
                parent += media.digest(start, start + size)
            hashes.append(hash_block(parent, sequence.tokens[start : start + size]))
        return hashes


def padded(tokens: int) -> int:
    """The size of the graph that computes this many tokens: graphs are recorded for a few sizes only.

    >>> padded(65), padded(300)
    (96, 384)
    """
    return next((size for size in _GRAPH_SIZES if size >= tokens), -(-tokens // 128) * 128)
