"""ms-swift's method: adjacent text that counts alike is tokenised together, and long rows are dropped or truncated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal

from npukit.errors import NpukitError
from npukit.llm.chat.peers.data import IGNORED, BadTurns, Labelled, parts_of, table
from npukit.llm.chat.peers.swift_agent import Context, Turn, weighed, with_calls
from npukit.llm.chat.peers.tools import ToolFormat, format_named, full, names, tools_of

Counted = tuple[str | list[int], int]  # text or tokens, and how much they count
EMPTY_THOUGHT = re.compile(r"^(<think>\s*)?</think>\s*")


@dataclass(frozen=True)
class Meta:
    """What is written around the rounds of a conversation."""

    kind: Literal[
        "plain", "system_in_question", "embedding", "embedding_with_pictures", "reranker", "reranker_with_pictures"
    ] = "plain"
    prefix: Sequence[Context] = ()
    prompt: Sequence[Context] = ()
    last_prompt: Sequence[Context] | None = None  # for the last question, if it contains the system message
    separator: Sequence[Context] | None = None  # None: only one round is supported
    suffix: Sequence[Context] = ()
    system_prefix: Sequence[Context] | None = None
    default_system: str | None = None
    begins_as_the_tokenizer: bool = False
    stop_words: Sequence[str] = ()
    is_thinking: bool = False
    thinking_prefix: str = ""
    non_thinking_prefix: str = ""
    history_thinking_prefix: str = ""
    preserve_thinking: bool | None = None
    agent: str | None = None  # how tools are written
    thinks_after_questions_only: bool = False  # but not after results


def meta_named(name: str) -> Meta | None:
    """ms-swift's template with this name, unless it has a class of its own there."""
    row = table("ms_swift")["templates"].get(name)
    return Meta(**_dated(row)) if row else None


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    """A template with the current date, if ms-swift inserts it."""
    today = date.today().strftime("%d %b %Y")
    dated: dict[str, Any] = json.loads(json.dumps(row).replace("{{TODAY}}", today))
    return dated


def with_agent(meta: Meta, name: str | None) -> Meta:
    """The template with another format for tools than its own."""
    if name is not None and format_named("ms_swift", name) is None:
        raise NpukitError(f"data.tool_format: {name!r} is not known; known are {', '.join(names('ms_swift'))}.")
    return replace(meta, agent=name or meta.agent)


def template_of(model: str, architecture: str | None) -> str | None:
    """The template that ms-swift selects for a model by its name and config.json; None if it would ask the user.

    >>> template_of("Qwen/Qwen2.5-7B-Instruct", None)
    'qwen2_5'
    """
    name = re.sub(r"[\\/]+$", "", model).replace("\\", "/").split("/")[-1].lower()
    models = table("ms_swift")["models"]
    for templates in [models[architecture]] if architecture in models else models.values():
        for template, known in templates.items():
            if name in known or (architecture is not None and len(templates) == 1):
                return str(template)
    return None


@dataclass(frozen=True)
class Writer:
    """Writes conversations with a template and a tokenizer.

    >>> Writer(meta_named("qwen2_5"), tokenizer).row([{"role": "user", "content": "Hi"}, …])
    ([151644, 8948, …], [-100, -100, …])
    """

    meta: Meta
    tokenizer: Any
    system: str | None = None
    train_on_prompt: bool = False
    last_answer_only: bool = False
    thinking: bool | None = None
    train_on_empty_thought: bool = True
    weigh: Sequence[str] = ()  # how the parts of answers are weighted, by names of swift_agent.weights()

    def row(self, turns: list[dict[str, str]]) -> Labelled:
        """The ids and labels of a conversation, however long."""
        return self.weighed_row(turns)[:2]

    def weighed_row(self, turns: list[dict[str, str]]) -> tuple[list[int], list[int], list[int]]:
        """Its ids, its labels, and how much each label counts."""
        ids: list[int] = []
        labels: list[int] = []
        weights: list[int] = []
        for content, counts in _merge_adjacent(self._contexts(turns)):
            own = self._ids(content) if isinstance(content, str) else content
            ids += own
            labels += own if counts else [IGNORED] * len(own)
            weights += [int(counts)] * len(own)
        self._count_ends(ids, labels)
        weights = [weight or int(label != IGNORED) for weight, label in zip(weights, labels, strict=True)]
        return ids, [IGNORED, *labels[1:]], [0, *weights[1:]]

    def _contexts(self, turns: list[dict[str, str]]) -> Iterator[Counted]:
        """All text in order, and whether it counts."""
        system, messages = self._prepared(turns)
        everything = self.train_on_prompt
        begin, end = self._begin_and_end() if self.meta.begins_as_the_tokenizer else ([], [])
        if begin:
            yield begin, everything
        has_system = bool(system) and self.meta.last_prompt is None
        yield from self._fill(self.meta.system_prefix or () if has_system else self.meta.prefix, everything, system)
        rounds, last_asked = -(-len(messages) // 2), _last_question(messages)
        for number in range(rounds):
            is_last = number == rounds - 1
            asked = messages[2 * number]
            answer = messages[2 * number + 1]["content"] if len(messages) > 2 * number + 1 else None
            prompt = self.meta.last_prompt if is_last and self.meta.last_prompt is not None else self.meta.prompt
            is_result = asked["role"] == "result"
            question = "" if is_result else asked["content"]
            yield from self._fill(asked["content"] if is_result else prompt, everything, system, question, number)
            counts = everything or 2 * number >= last_asked or not self.last_answer_only
            if answer is None:  # a classifier's text, written as a question that is about to be answered
                yield self._answer_begins(), False
                continue
            parts = answer if isinstance(answer, list) else [answer]
            for part in parts:
                yield from self._answer(part, counts)
            if not is_last:
                if messages[2 * number + 2]["role"] != "result":
                    yield from self._fill(self.meta.separator or (), everything, None)
            elif not end and not parts[-1].endswith(self._stop_words()):
                yield from self._fill(self.meta.suffix, counts, None)
        if end:
            yield end, True

    def _answer_begins(self) -> str:
        thinks = self.meta.is_thinking and not self.meta.non_thinking_prefix
        return self.meta.thinking_prefix if thinks else self.meta.non_thinking_prefix

    def _answer(self, answer: str, counts: bool) -> Iterator[Counted]:
        thought = EMPTY_THOUGHT.match(answer)
        if thought and counts and not self.train_on_empty_thought:
            yield thought[0], False
            answer = answer[thought.end() :]
        if answer:
            yield from weighed(answer, self.weigh) if counts else [(answer, 0)]

    @property
    def _format(self) -> ToolFormat | None:
        return format_named("ms_swift", self.meta.agent)

    def _prepared(self, turns: list[dict[str, str]]) -> tuple[str | None, list[Turn]]:
        """The system message and the turns as the template expects them: calls written out, thoughts added or not."""
        meta = self.meta
        tools, system, plain = parts_of(turns)
        messages = with_calls(plain, self._format, meta.separator, meta.prompt)
        if meta.kind == "system_in_question":
            messages = [{**message, "content": _edges(message)} for message in messages]
            if system is not None:
                first = {**messages[0], "content": f"{system}\n\n{messages[0]['content']}"}
                system, messages = None, [first, *messages[1:]]
        if meta.kind == "embedding" and system:
            messages = [{**messages[0], "content": f"{system} {messages[0]['content']}"}, *messages[1:]]
            system = None
        if meta.kind.startswith("embedding") and messages[-1]["role"] != "assistant":
            messages = [*messages, {"role": "assistant", "content": ""}]
        if meta.kind in RERANKERS:
            messages, system = _judged(RERANKERS[meta.kind], system, messages), None
        if system is not None and meta.system_prefix is None and meta.last_prompt is None:
            raise BadTurns("has a system message, which this template cannot write")
        last = _last_question(messages)
        keeps = meta.preserve_thinking
        if keeps is None:
            keeps = not (meta.is_thinking or self.thinking) or not self.last_answer_only
        ready = []
        for number, message in enumerate(messages):
            content, more = message["content"], None
            if message["role"] == "assistant":
                if isinstance(content, list):
                    content, *more = content
                from_turn = last if self.last_answer_only and not meta.preserve_thinking else -1
                asked = number == 0 or messages[number - 1]["role"] == "user" or not meta.thinks_after_questions_only
                if meta.non_thinking_prefix and asked and number >= from_turn:
                    starts = ("<think>", meta.non_thinking_prefix)
                    content = content if content.startswith(starts) else meta.non_thinking_prefix + content
                if not keeps and number < last:
                    content = meta.history_thinking_prefix + content.split("</think>")[-1].strip()
            ready.append({**message, "content": [content, *more] if more else content})
        if system is None:
            system = self.system if self.system is not None else meta.default_system
        if tools and (functions := tools_of(tools)):
            system = self._with_tools(functions, system, ready)
        return system, ready if meta.separator is not None else ready[-2 + len(ready) % 2 :]

    def _with_tools(self, tools: list[Any], system: str | None, messages: list[Turn]) -> str:
        """The system message with tools, which some formats put into the first question."""
        written = self._format
        if written is None:
            raise BadTurns("has tools, which this template does not write: set data.tool_format")
        tools = [full(tool) for tool in tools]
        messages[0] = {**messages[0], "content": written.write_question(tools, messages[0]["content"])}
        system = written.write_tools(tools, system)
        if system and self.meta.system_prefix is None and self.meta.last_prompt is None:
            raise BadTurns("has tools, which this template cannot write, since it has no system message")
        return system

    def _fill(
        self,
        contexts: Sequence[Context],
        counts: bool,
        system: str | None,
        query: str | None = None,
        number: int | None = None,
    ) -> Iterator[Counted]:
        rounds = {} if number is None else {"{{ROUND0}}": str(number), "{{ROUND1}}": str(number + 1)}
        for context in contexts:
            if isinstance(context, str):
                for old, new in {"{{SYSTEM}}": system, "{{QUERY}}": query, **rounds}.items():
                    context = context if new is None else context.replace(old, new)
                if context:
                    yield from weighed(context, self.weigh) if counts else [(context, 0)]
            else:
                tokens = [getattr(self.tokenizer, part) if isinstance(part, str) else part for part in context]
                yield [token for token in tokens if token is not None], counts

    def _begin_and_end(self) -> tuple[list[int], list[int]]:
        """The tokens that the tokenizer adds around any text."""
        around, inside = self.tokenizer.encode("a"), self._ids("a")
        at = around.index(inside[0])
        return around[:at], around[at + 1 :]

    def _stop_words(self) -> tuple[str, ...]:
        suffix = self.meta.suffix[-1] if self.meta.suffix else ""
        own = [suffix.strip()] if isinstance(suffix, str) else []
        return tuple(word for word in (*self.meta.stop_words, *own, self.tokenizer.eos_token) if word)

    def _count_ends(self, ids: list[int], labels: list[int]) -> None:
        """Let what follows an intermediate answer count, if it is what ends the last one."""
        suffix = [token for part in self._fill(self.meta.suffix, True, None) for token in self._of(part[0])]
        before = list(labels)
        for at in range(1, len(ids)):
            follows = before[at - 1] != IGNORED and before[at] == IGNORED
            is_free = all(label == IGNORED for label in before[at : at + len(suffix)])
            if follows and is_free and suffix and ids[at : at + len(suffix)] == suffix:
                labels[at : at + len(suffix)] = suffix

    def _of(self, content: str | list[int]) -> list[int]:
        return self._ids(content) if isinstance(content, str) else content

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


@dataclass(frozen=True)
class RerankerText:
    """A reranker's format for a query and a document, and its instruction if there is no system message."""

    text: str
    instruction: str


RERANKERS = {
    "reranker": RerankerText(
        "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}",
        "Given a web search query, retrieve relevant passages that answer the query",
    ),
    "reranker_with_pictures": RerankerText(
        "<Instruct>: {instruction}<Query>:{query}\n<Document>:{document}",
        "Given a search query, retrieve relevant candidates that answer the query.",
    ),
}


def _judged(written: RerankerText, system: str | None, messages: list[Turn]) -> list[Turn]:
    if len(messages) < 2:
        raise BadTurns("has no document, which this template needs")
    query, document = (message["content"] for message in messages[:2])
    instruction = written.instruction if system is None else system
    return [{"role": "user", "content": written.text.format(instruction=instruction, query=query, document=document)}]


def _last_question(messages: list[Turn]) -> int:
    return max((number for number, message in enumerate(messages) if message["role"] == "user"), default=-1)


def _edges(message: Turn) -> Any:
    is_answer = message["role"] == "assistant" and isinstance(message["content"], str)
    return message["content"].strip("\n") if is_answer else message["content"]


def _merge_adjacent(contexts: Iterator[Counted]) -> Iterator[Counted]:
    """Merge adjacent texts that count alike."""
    texts: list[str] = []
    counted = 0
    for content, counts in contexts:
        if texts and (not isinstance(content, str) or counts != counted):
            yield "".join(texts), counted
            texts = []
        if isinstance(content, str):
            texts.append(content)
            counted = counts
        else:
            yield content, counts
    if texts:
        yield "".join(texts), counted
