"""Conduct conversations: the model answers, the scheduler continues, and so on until each has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from npukit.llm.config.reinforcement import GrpoOptions
from npukit.llm.data.prompts import RolloutPrompt
from npukit.llm.data.row import BadRow
from npukit.rl.samples import Drawn, RolloutSample
from npukit.rl.turns.encoding import TurnEncoder
from npukit.rl.turns.scheduler import SchedulerProcess
from npukit.rl.turns.turn import Messages, RolloutConversation, Turn, TurnReply
from npukit.train.randomness import seed_of


class Asked(NamedTuple):
    """The input for one answer: a prompt and the tokens after it, a seed, and the maximum number of tokens."""

    prompt: RolloutPrompt
    more: tuple[int, ...]
    seed: int
    most: int

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens before the answer."""
        return (*self.prompt.ids, *self.more)


Draw = Callable[[Sequence[Asked]], list[Drawn]]


@dataclass
class Trajectory:
    """A conversation in progress. The tokens are those after the prompt; `loss_mask` is 1 for sampled ones."""

    prompt: RolloutPrompt
    seed: int
    ids: list[int] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    messages: Messages = field(default_factory=list)
    turns: int = 0
    is_cut: bool = False
    is_done: bool = False
    infos: dict[str, Any] = field(default_factory=dict)
    problem: str = ""

    def add(self, ids: Sequence[int], sampled: Sequence[float], mask: Sequence[int]) -> None:
        """Append some tokens."""
        self.ids += ids
        self.sampled += sampled
        self.loss_mask += mask

    def say(self, text: str) -> None:
        """Record what the model said, as a new message unless it continues one."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            text = self.messages.pop()["content"] + text
        self.messages.append({"role": "assistant", "content": text})

    def end(self, problem: str = "", is_cut: bool = False) -> None:
        """End the conversation."""
        self.is_done, self.problem, self.is_cut = True, problem, is_cut

    def sample(self) -> RolloutSample:
        """The conversation as one answer."""
        text = next((turn["content"] for turn in reversed(self.messages) if turn["role"] == "assistant"), "")
        return RolloutSample(
            self.prompt,
            np.array(self.ids, dtype=np.int64),
            np.array(self.sampled, dtype=np.float32),
            text,
            self.is_cut,
            loss_mask=np.array(self.loss_mask, dtype=np.float32),
            messages=self.messages,
            turns=self.turns,
            infos=self.infos,
            problem=self.problem,
        )


class Conversations:
    """Conducts conversations with a scheduler. `longest` is the model's maximum length, `words` the size of its
    vocabulary, and `image_tokens` stand for parts of images.
    """

    def __init__(
        self,
        options: GrpoOptions,
        scheduler: SchedulerProcess,
        encoder: TurnEncoder,
        longest: int,
        words: int,
        image_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self._options, self._scheduler, self._encoder = options, scheduler, encoder
        self._longest, self._words, self._image_tokens, self._begun = longest, words, image_tokens, 0

    def hold(self, prompts: Sequence[RolloutPrompt], seeds: Sequence[int], draw: Draw) -> list[RolloutSample]:
        """Conduct a conversation for each prompt, all concurrently."""
        trajectories = self._begin(prompts, seeds)
        open_ones = {uuid: one for uuid, one in trajectories.items() if not one.is_done}
        while open_ones:
            self._take_turns(open_ones, draw)
            open_ones = {uuid: one for uuid, one in open_ones.items() if not one.is_done}
        return [one.sample() for one in trajectories.values()]

    def _begin(self, prompts: Sequence[RolloutPrompt], seeds: Sequence[int]) -> dict[str, Trajectory]:
        uuids = [str(self._begun + number) for number in range(len(prompts))]
        self._begun += len(prompts)
        asked = [RolloutConversation(uuid, p.messages, p.columns) for uuid, p in zip(uuids, prompts, strict=True)]
        begun = self._scheduler.begin(asked)
        return {
            uuid: self._trajectory(prompt, seed, messages)
            for uuid, prompt, seed, messages in zip(uuids, prompts, seeds, begun, strict=True)
        }

    def _trajectory(self, prompt: RolloutPrompt, seed: int, begun: Messages | str) -> Trajectory:
        """Begin a conversation. If that fails, the model answers the data's prompt, and nothing follows."""
        problem = begun if isinstance(begun, str) else ""
        if not problem and begun != prompt.messages and prompt.images:
            problem = "it begins another conversation, which the images of the row do not belong to."
        if not problem and begun != prompt.messages:
            try:
                ids = self._encoder.prompt(begun, prompt.messages)  # type: ignore[arg-type]
                if len(ids) >= self._longest:
                    raise BadRow(f"has {len(ids)} tokens, and the model reads up to {self._longest}")
                prompt = prompt._replace(ids=ids, messages=begun)  # type: ignore[arg-type]
            except BadRow as error:
                problem = f"the conversation that it begins {error}."
        return Trajectory(prompt, seed, problem=problem)

    def _take_turns(self, trajectories: dict[str, Trajectory], draw: Draw) -> None:
        ones = list(trajectories.values())
        asked = [
            Asked(one.prompt, tuple(one.ids), seed_of(one.seed, one.turns) if one.turns else one.seed, self._room(one))
            for one in ones
        ]
        answers = draw(asked)
        for one in ones:
            one.turns += 1
        turns = list(map(self._turn, trajectories, ones, answers))
        replies = self._scheduler.next(turns)
        for one, answer, turn, reply in zip(ones, answers, turns, replies, strict=True):
            self._go_on(one, answer, turn, reply)

    def _room(self, one: Trajectory, more: int = 0) -> int:
        """How many tokens the next answer may have if this many are added before it."""
        room = self._longest - len(one.prompt.ids) - len(one.ids) - more
        used = len(one.ids) + more if self._options.completion_length_limit_scope == "total" else 0
        return max(min(room, self._options.max_completion_length - used), 0)

    def _turn(self, uuid: str, one: Trajectory, answer: Drawn) -> Turn:
        kept = len(answer.ids) - answer.has_ended
        is_last = bool(one.problem) or not answer.has_ended or one.turns >= self._options.max_turns
        return Turn(
            uuid,
            one.turns,
            answer.text,
            answer.ids[:kept],
            answer.logprobs[:kept],
            was_cut=not answer.has_ended,
            is_last=is_last,
        )

    def _go_on(self, one: Trajectory, answer: Drawn, turn: Turn, reply: TurnReply) -> None:
        one.infos |= reply.infos
        before = [*one.prompt.messages, *one.messages]
        whole = (answer.ids, answer.logprobs, [1] * len(answer.ids))
        problem = one.problem or answer.problem or reply.problem
        if problem or turn.is_last or not reply.goes_on:
            one.add(*whole)
            one.say(answer.text)
            return one.end(problem, is_cut=turn.was_cut)
        try:
            ids, mask = self._kept(turn, reply)
            follows = self._encoder.between(before, reply.messages) if reply.messages else []
            if not self._image_tokens.isdisjoint((*ids, *follows)):
                raise ValueError("has a token that stands for a part of an image")
        except (BadRow, ValueError) as error:
            one.add(*whole)
            one.say(answer.text)
            return one.end(f"what it returned {error}.")
        own = sum(mask)
        sampled = [*turn.logprobs[:own], *([0.0] * (len(ids) - own))]
        one.add(ids, sampled, mask)
        one.say(self._said(answer.text, turn, ids, reply))
        if reply.messages:
            was_kept = own == len(turn.ids)
            one.add(answer.ids[-1:], [answer.logprobs[-1] if was_kept else 0.0], [int(was_kept)])
            if not self._room(one, len(follows)):
                return one.end(is_cut=True)
            one.add(follows, [0.0] * len(follows), [0] * len(follows))
            one.messages += reply.messages
        elif not self._room(one):
            one.end(is_cut=True)
        return None

    def _said(self, text: str, turn: Turn, ids: list[int], reply: TurnReply) -> str:
        """The text of an answer as it is kept."""
        return text if ids == turn.ids else text + reply.more if reply.ids is None else self._encoder.decode(ids)

    def _kept(self, turn: Turn, reply: TurnReply) -> tuple[list[int], list[int]]:
        """The tokens of an answer as they are kept, and which count: the first ones, which are as they were sampled."""
        if reply.ids is None:
            more = self._encoder.text(reply.more)
            return [*turn.ids, *more], [1] * len(turn.ids) + [0] * len(more)
        ids = [int(token) for token in reply.ids]
        mask = [1] * len(ids) if reply.loss_mask is None else [int(bool(value)) for value in reply.loss_mask]
        own = sum(mask)
        if len(mask) != len(ids) or not all(0 <= token < self._words for token in ids):
            raise ValueError("has tokens that the model does not have, or a loss mask of another length")
        if ids[:own] != turn.ids[:own] or mask != [1] * own + [0] * (len(ids) - own):
            raise ValueError("wants tokens to be learnt from that the model did not sample")
        return ids, mask
