"""Which requests take part in the next step.

A step decodes one token for every running request, and computes some of the prompts that wait (prefill). Decoding is
reading weights, which costs the same for one token as for some hundred: prompts go along in the same pass, in pieces,
where the device can do that (`together`). A flood of them is quicker on its own, as many tokens as there is room for.

Where blocks run out the youngest running request gives up its own and waits; what it had is computed again later, so
that nothing fails and nothing changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from npukit.inference.engine.pool import BlockPool, key_of
from npukit.inference.engine.sequence import Sequence
from npukit.inference.engine.speculative import Proposer

# Up to so many tokens a pass takes hardly longer than with one: the device's arithmetic waits for its memory.
CHEAP = 128
CHEAP_ON_HOST = 16
_SMALL = (1, 2, 4, 8, 16, 32, 48, 64, 96)


@dataclass(frozen=True)
class Chunk:
    """Tokens `start` to `stop` of a sequence that are computed in a step."""

    sequence: Sequence
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """Whether a token is generated after it."""
        return self.stop == self.sequence.goal


class SchedulerOutput:
    """What the device is to do next: one pass with a token and a guess for each of `decodes` and the prompts `beside`
    them, then one with the prompts `apart`. `sampled` is whose next tokens it generates, in the order of its results.
    """

    def __init__(self, decodes: list[Sequence], beside: list[Chunk], apart: list[Chunk]) -> None:
        self.decodes, self.beside, self.apart = decodes, beside, apart
        self.sampled = decodes + [chunk.sequence for chunk in self.chunks if chunk.is_last]

    @property
    def chunks(self) -> list[Chunk]:
        """The pieces of prompts, wherever they are computed."""
        return self.beside + self.apart


class Scheduler:
    """Keeps the waiting and the running requests, oldest first, and hands out rows and blocks.

    `together` is how many tokens a pass of decoding and prompts may have; 0: prompts have passes of their own.
    The `proposer` guesses tokens of each answer, as long as a pass has no more than `cheap` tokens with them.
    """

    def __init__(
        self,
        pool: BlockPool,
        rows: int,
        prefill_tokens: int,
        reuse: bool = True,
        together: int = 0,
        proposer: Proposer | None = None,
        cheap: int = CHEAP,
    ) -> None:
        self.pool, self.prefill_tokens, self.reuse, self.together = pool, prefill_tokens, reuse, together
        self.proposer, self.cheap = proposer, cheap
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.reused_tokens = self.preemptions = 0
        self._rows = list(range(rows))[::-1]

    def next(self) -> SchedulerOutput:
        """Decide what runs now; from here on it counts as computed."""
        decodes = self._decode()
        self._guess(decodes)
        room = self._room_beside(sum(1 + len(sequence.guess) for sequence in decodes))
        chunks = self._prefill(room or self.prefill_tokens)
        step = SchedulerOutput(decodes, chunks, []) if room else SchedulerOutput(decodes, [], chunks)
        for sequence in step.decodes:
            sequence.cached += 1 + len(sequence.guess)
        for sequence in step.sampled:
            sequence.launches += 1
        return step

    def end(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        if sequence.row >= 0:
            self._leave(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def forget_prefixes(self) -> None:
        """What was computed belongs to other weights; nothing may be running."""
        assert not self.running and not self.waiting
        self.pool.forget()

    def remember(self, sequence: Sequence) -> None:
        """Name the blocks that are full, for prompts to come."""
        if not self.reuse or sequence.row < 0:
            return
        full = min(sequence.cached, len(sequence.tokens)) // self.pool.size
        for index in range(sequence.remembered, full):
            self.pool.remember(sequence.blocks[index], self._keys(sequence, full)[index])
        sequence.remembered = full

    def _decode(self) -> list[Sequence]:
        chosen: list[Sequence] = []
        size = self.pool.size
        for sequence in list(self.running):  # oldest first
            if sequence.cached < sequence.goal or sequence.cached >= sequence.limit - 1:
                continue  # its prompt is not done, or its last token is on the way
            if sequence.row < 0 or (sequence.waits_for_tokens and sequence.launches):
                continue
            if sequence.cached < len(sequence.blocks) * size or self._has_room(sequence, chosen):
                chosen.append(sequence)
        # Longest first: the device takes them up in this order, and is not left with a long one at the end.
        return sorted(chosen, key=lambda sequence: -sequence.cached)

    def _guess(self, decodes: list[Sequence]) -> None:
        """Fill up the pass with guesses. They get blocks that are free, but at nobody's cost."""
        room = self.cheap - len(decodes)
        if self.proposer is None or room <= 0:
            return
        guessed = [sequence for sequence in decodes if not sequence.waits_for_tokens][:room]
        longest = self.proposer.num_speculative_tokens
        most = [min(longest, sequence.limit - sequence.cached - 2) for sequence in guessed]
        for sequence, guess in zip(guessed, self.proposer.propose(guessed, most), strict=True):
            guess = guess[:room]
            missing = (sequence.cached + len(guess)) // self.pool.size + 1 - len(sequence.blocks)
            if guess and missing > 0:
                sequence.blocks += self.pool.take(missing) or []
            sequence.guess = guess[: len(sequence.blocks) * self.pool.size - sequence.cached - 1]
            room -= len(sequence.guess)

    def _has_room(self, sequence: Sequence, chosen: list[Sequence]) -> bool:
        """Give it the block that its next token needs, if need be at the cost of the youngest."""
        while sequence.cached // self.pool.size == len(sequence.blocks):
            if blocks := self.pool.take(1):
                sequence.blocks += blocks
            else:
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest in chosen:
                    chosen.remove(youngest)
                if youngest is sequence:
                    return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._leave(sequence)
        sequence.cached = sequence.goal = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)
        self._rows.append(sequence.row)
        sequence.row, sequence.blocks, sequence.remembered = -1, [], 0
        sequence.features.clear()

    def _room_beside(self, decodes: int) -> int:
        """How many tokens of prompts go into the pass of `decodes`: what it has room for anyway, or a part of those
        that wait, so that they do not pile up; 0 where they are to have a pass of their own.
        """
        pending = 0
        for sequence in self._prompts():
            pending += (sequence.goal or len(sequence.tokens)) - sequence.cached
            if sequence.needs_own_pass:
                return 0
        size = padded(max(CHEAP, decodes + pending // 4) if decodes else pending)
        return size - decodes if pending and size <= self.together else 0

    def _prompts(self) -> Iterator[Sequence]:
        """Those that were begun, and of those that wait as many as could begin."""
        yield from (sequence for sequence in self.running if sequence.is_prefilling)
        yield from islice(self.waiting, len(self._rows))

    def _prefill(self, room: int) -> list[Chunk]:
        """Go on with prompts that were begun, then begin others, as far as the step's tokens and the blocks go."""
        chunks = []
        begun = deque(sequence for sequence in self.running if sequence.is_prefilling)
        while room > 0:
            sequence = begun.popleft() if begun else self._admit()
            if sequence is None:
                break
            stop = sequence.end_of_chunk(min(sequence.goal, sequence.cached + room))
            chunks.append(Chunk(sequence, sequence.cached, stop))
            room -= stop - sequence.cached
            sequence.cached = stop
            self.remember(sequence)  # a pass writes before it reads: the next prompt may begin alike
        return chunks

    def _admit(self) -> Sequence | None:
        """Let the oldest waiting request begin, if there are a row and blocks for it."""
        if not self.waiting or not self._rows or self.waiting[0].launches:  # its last token is still on the way
            return None
        sequence = self.waiting[0]
        prefix = self._find_prefix(sequence)
        needed = -(-(len(sequence.tokens) + 1) // self.pool.size) - len(prefix)
        if needed > self.pool.free - self.pool.unused(prefix):
            return None
        self.pool.hold(prefix)
        sequence.blocks = prefix + (self.pool.take(needed) or [])
        sequence.remembered = len(prefix)
        sequence.goal, sequence.cached = len(sequence.tokens), len(prefix) * self.pool.size
        self.reused_tokens += sequence.cached
        sequence.row = self._rows.pop()
        self.running.append(self.waiting.popleft())
        return sequence

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """The blocks that can be reused; the last token is computed in any case, since the next one comes from it."""
        if not self.reuse or sequence.request.prompt_logprobs is not None:
            return []
        return self.pool.find(self._keys(sequence, (len(sequence.tokens) - 1) // self.pool.size))

    def _keys(self, sequence: Sequence, count: int) -> list[bytes]:
        """The names of its first `count` blocks, each made once."""
        keys, size = sequence.keys, self.pool.size
        for start in range(len(keys) * size, count * size, size):
            parent = keys[-1] if keys else sequence.root
            if (media := sequence.request.multimodal) is not None:
                parent += media.digest(start, start + size)
            keys.append(key_of(parent, sequence.tokens[start : start + size]))
        return keys[:count]


def padded(tokens: int) -> int:
    """How many tokens the pass of so many has, where passes are graphs, of which there are a few sizes.

    >>> padded(65), padded(300)
    (96, 384)
    """
    return next((size for size in _SMALL if size >= tokens), -(-tokens // 128) * 128)
