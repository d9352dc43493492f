"""LLaMA-Factory's method: each part of a template is tokenised separately, and long rows lose a share of each turn."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from npukit.errors import NpukitError
from npukit.llm.chat.peers.data import IGNORED, BadTurns, Labelled, parts_of, table
from npukit.llm.chat.peers.tools import ToolFormat, format_named, names, tools_of

Slot = str | dict[str, str]  # text with {{content}}, {"token": "<|user|>"} or {"special": "eos_token"}
Turns = list[dict[str, str]]
BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"


@dataclass(frozen=True)
class Slots:
    """What is written around the parts of a conversation."""

    kind: Literal["plain", "system_in_question", "reasoning", "reasoning_closing_only"] = "plain"
    prefix: Sequence[Slot] = ()
    system: Sequence[Slot] = ()
    user: Sequence[Slot] = ()
    assistant: Sequence[Slot] = ()
    function: Sequence[Slot] | None = None  # around calls of functions; None: as around answers
    observation: Sequence[Slot] | None = None  # around results of calls; None: as around questions
    tool_format: str = "default"
    call_words: Sequence[str] = ("<tool_call>", "</tool_call>")
    default_system: str = ""
    stop_words: Sequence[str] = ()
    thought_words: Sequence[str] = ("<think>\n", "\n</think>\n\n")
    efficient_eos: bool = False  # answers have no end token; the label of whatever follows is the end token
    replace_eos: bool = False

    @property
    def reasons(self) -> bool:
        return self.kind.startswith("reasoning")

    @property
    def empty_thought(self) -> str:
        return self.thought_words[1] if self.kind == "reasoning_closing_only" else "".join(self.thought_words)


def slots_named(name: str) -> Slots | None:
    """LLaMA-Factory's template with this name."""
    row = table("llama_factory")["templates"].get(name)
    return Slots(**row) if row else None


def with_tool_format(slots: Slots, name: str) -> Slots:
    """The template with another format for tools and calls."""
    if format_named("llama_factory", name) is None:
        known = ", ".join(names("llama_factory"))
        raise NpukitError(f"data.tool_format: LLaMA-Factory has no format {name!r}; it has {known}.")
    end: list[Slot] = [] if slots.efficient_eos else [{"special": "eos_token"}]
    return replace(slots, tool_format=name, function=["{{content}}", *end])


@dataclass(frozen=True)
class Writer:
    """Writes conversations with a template and a tokenizer, and may set the tokenizer's end token to the template's.

    >>> Writer(slots_named("qwen"), tokenizer).row([{"role": "user", "content": "Hi"}, …])
    ([151644, 8948, …], [-100, -100, …])
    """

    slots: Slots
    tokenizer: Any
    cutoff: int = 2048
    system: str | None = None
    train_on_prompt: bool = False
    last_answer_only: bool = False
    thinking: bool | None = True

    def __post_init__(self) -> None:
        if self.train_on_prompt and self.slots.efficient_eos:
            raise NpukitError("This template has no end token after answers, so data.train_on_prompt cannot be used.")
        take_end_token(self.slots, self.tokenizer)

    def row(self, turns: Turns) -> Labelled:
        """The ids and labels of a conversation."""
        pairs = self.pairs(turns)
        end = [self.tokenizer.eos_token_id] if self.slots.efficient_eos else []
        length, ids, labels = len(end), list[int](), list[int]()
        # If only the last answer is trained, the last turns take precedence when truncating.
        for number, (source, target) in enumerate(pairs[::-1] if self.last_answer_only else pairs):
            if length >= self.cutoff:
                break
            source_length, target_length = shares(len(source), len(target), self.cutoff - length)
            source, target = source[:source_length], target[:target_length]
            length += source_length + target_length
            own = self._labels(number, source, target)
            if self.last_answer_only:
                ids, labels = source + target + ids, own + labels
            else:
                ids, labels = ids + source + target, labels + own
        return ids + end, labels + end

    def answers(self, turns: Turns, answers: Sequence[str]) -> list[Labelled]:
        """One question with each of several final answers, which alone count. All are truncated alike."""
        end = [self.tokenizer.eos_token_id] if self.slots.efficient_eos else []
        conversations = [self.pairs([*turns, {"role": "assistant", "content": answer}]) for answer in answers]
        before = [token for source, target in conversations[0] for token in source + target]
        source = before[: len(before) - len(conversations[0][-1][1])]
        targets = [pairs[-1][1] + end for pairs in conversations]
        asked, answered = shares(len(source), max(map(len, targets)), self.cutoff)
        return [
            (source[:asked] + target[:answered], [IGNORED] * len(source[:asked]) + target[:answered])
            for target in targets
        ]

    def _labels(self, number: int, source: list[int], target: list[int]) -> list[int]:
        before = source if self.train_on_prompt else [IGNORED] * len(source)
        if self.slots.efficient_eos and number and source:
            before = [self.tokenizer.eos_token_id, *before[1:]]
        is_history = self.last_answer_only and number
        return before + ([IGNORED] * len(target) if is_history else target)

    def pairs(self, turns: Turns) -> list[tuple[list[int], list[int]]]:
        """Questions and answers as ids. The prefix and system message belong to the first question."""
        tools, system, messages = parts_of(turns)
        system = system or (self.system if self.system is not None else self.slots.default_system) or None
        if tools:
            functions = tools_of(tools)
            system = (system or "") + (
                self._format.write_tools(functions, raw=tools) if functions or self._format.always else ""
            )
        messages = list(self._thoughts_removed(_in_turn(messages)))
        encoded = [self._turn(number, message, system) for number, message in enumerate(messages)]
        asked = [len(messages) - 2] if self.last_answer_only else range(0, len(messages), 2)
        if self.slots.reasons:
            for at in asked:
                if not self._has_thought(messages[at + 1]["content"]):
                    place = at + 1 if self.thinking else at
                    thought = self._ids([self.slots.empty_thought])
                    encoded[place] = thought + encoded[place] if self.thinking else encoded[place] + thought
        return [(encoded[at], encoded[at + 1]) for at in range(0, len(encoded), 2)]

    @property
    def _format(self) -> ToolFormat:
        tool_format = format_named("llama_factory", self.slots.tool_format)
        assert tool_format
        return tool_format

    def _turn(self, number: int, message: dict[str, str], system: str | None) -> list[int]:
        content, slots = message["content"], self.slots
        parts: list[Slot] = []
        if number == 0:
            parts += slots.prefix
            if system is not None and slots.kind == "system_in_question":
                content = str(next(_filled(slots.system, system))) + content
            elif system is not None:
                parts += _filled(slots.system, system)
        around = {
            "user": slots.user,
            "assistant": slots.assistant,
            "call": slots.assistant if slots.function is None else slots.function,
            "result": slots.user if slots.observation is None else slots.observation,
        }[message["role"]]
        if message["role"] == "call":
            content = self._calls(content)
        is_question = message["role"] == "user"
        return self._ids([*parts, *_filled(around, content, number // 2 if is_question else None)])

    def _calls(self, content: str) -> str:
        """Calls in the template's format, optionally preceded by a thought."""
        before, text = "", content
        # Templates with the system message in the question look for neither.
        is_plain = self.slots.kind == "system_in_question"
        if not is_plain and (called := _between(self.slots.call_words, content)):
            before, text = content.replace(called[0], ""), called[1]
        elif not is_plain and (thought := _between(self.slots.thought_words, content)):
            before, text = thought[0], content.replace(thought[0], "")
        try:
            written = json.loads(text)
            calls = [{"name": call["name"], "arguments": call["arguments"]} for call in _listed(written)]
        except (ValueError, KeyError, TypeError):
            raise BadTurns("has a call that is not an object with name and arguments in JSON") from None
        return before + self._format.write_calls(calls)

    def _thoughts_removed(self, messages: Turns) -> Iterator[dict[str, str]]:
        last = len(messages) - 1
        for number, message in enumerate(messages):
            is_history = self.last_answer_only and number < last - 1
            if self.slots.reasons and number % 2 and (self.thinking is False or is_history):
                start, end = map(re.escape, self.slots.thought_words)
                content = re.sub(f"{start}(.*?){end}", "", message["content"], flags=re.DOTALL).lstrip("\n")
                message = {**message, "content": content}
            yield message

    def _has_thought(self, content: str) -> bool:
        return any(word.strip() in content for word in self.slots.thought_words)

    def _ids(self, parts: Iterable[Slot]) -> list[int]:
        ids: list[int] = []
        for part in parts:
            if isinstance(part, dict):
                token = self._special(part["special"]) if "special" in part else part["token"]
                ids += [self.tokenizer.convert_tokens_to_ids(token)] if token else []
            elif part:
                ids += self.tokenizer.encode(part, add_special_tokens=False)
        return ids

    def _special(self, name: str) -> str | None:
        return {"bos_token": self.tokenizer.bos_token, "eos_token": self.tokenizer.eos_token}.get(name)


def _in_turn(messages: Turns) -> Turns:
    """Alternating questions or results, and answers or calls. Adjacent results, and adjacent calls, become one.

    An answer before a call is dropped, as in LLaMA-Factory when both are in one message.
    """
    joined: Turns = []
    for message in messages:
        before = joined[-1] if joined else {"role": ""}
        if before["role"] == "assistant" and message["role"] == "call":
            joined[-1] = message
        elif before["role"] == message["role"] == "result":
            joined[-1] = {**before, "content": BETWEEN_RESULTS.join((before["content"], message["content"]))}
        elif before["role"] == message["role"] == "call":
            calls = [call for text in (before["content"], message["content"]) for call in _listed(json.loads(text))]
            joined[-1] = {**before, "content": json.dumps(calls, ensure_ascii=False)}
        else:
            joined.append(message)
    if any((message["role"] in ("user", "result")) == number % 2 for number, message in enumerate(joined)):
        raise BadTurns("does not have questions or results, and answers or calls, in turn")
    return joined


def _between(words: Sequence[str], text: str) -> re.Match[str] | None:
    start, end = map(re.escape, words)
    return re.search(f"{start}(.*?){end}", text, re.DOTALL)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def take_end_token(slots: Slots, tokenizer: Any) -> None:
    """Make the template's end token the tokenizer's, if the tokenizer has it."""
    vocabulary = tokenizer.get_vocab()
    if slots.replace_eos and slots.stop_words and slots.stop_words[0] in vocabulary:
        tokenizer.eos_token = slots.stop_words[0]
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token


def shares(source: int, target: int, room: int) -> tuple[int, int]:
    """How many tokens of a question and its answer to keep: a short one stays whole, two long ones share the space.

    >>> shares(300, 100, 100)
    (75, 25)
    """
    if target * 2 < room:
        longest = room
    elif source * 2 < room:
        longest = room - source
    else:
        longest = int(room * (target / (source + target)))
    answer = min(longest, target)
    return min(max(room - answer, 0), source), answer


def _filled(slots: Sequence[Slot], content: str, round_: int | None = None) -> Iterator[Slot]:
    for slot in slots:
        if isinstance(slot, str):
            slot = slot.replace("{{content}}", content, 1)
            slot = slot if round_ is None else slot.replace("{{idx}}", str(round_), 1)
        yield slot
