"""How to talk with one model: from messages to token ids, and from generated text to an answer.

    chat = Chat(tokenizer, find_template("qwen2_5"))       # or find_template(None, tokenizer): the tokenizer's own
    prompt = chat.prompt(messages, tools=tools)            # BadConversation is the user's mistake: a 400
    engine.generate(prompt.ids, stop_ids=chat.stop_ids, …)
    parser = chat.parser(prompt)
    for text in stream:                                    # decoded; keep the special tokens in chat.marker_ids
        for part in parser.feed(text):                     # Content, Reasoning or ToolCall
            …
    parts = parser.end()

Nothing here depends on how tokens are generated; a Chat can be used by many threads at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npukit.llm.chat.answer import END_OF_THINK, HERMES, MARKERS, THINK, Answer, AnswerParser, Syntax, syntax_of, whole
from npukit.llm.chat.described_tools import described, written_out
from npukit.llm.chat.messages import BadConversation, Message, TooLong, WrittenMedia, prepared
from npukit.llm.chat.render import NotRendered, Rendered
from npukit.llm.chat.templates import Template, find_template

RESERVED = ("messages", "conversations", "documents", "return_assistant_tokens_mask")  # not for the template
PROBE = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Me!"},
    {"role": "user", "content": "You?"},
]


@dataclass(frozen=True)
class Prompt:
    """The input of a model."""

    ids: list[int]
    text: str
    has_tools: bool = False
    is_thinking: bool = False  # the prompt ends inside the answer's reasoning


class Chat:
    """A tokenizer, the model's chat template, and a system message for conversations without one."""

    def __init__(
        self, tokenizer: Any, template: Template, system: str | None = None, eos_ids: Sequence[int] = ()
    ) -> None:
        """`eos_ids` are the end tokens of the model's generation_config.json, besides the tokenizer's."""
        self.tokenizer, self.template, self.system = tokenizer, template, system
        self.knows_tools = re.search(r"\btools\b", template.text) is not None
        self.thinks = END_OF_THINK in template.text
        self.syntax: Syntax | None = syntax_of(template.text) if self.knows_tools else HERMES
        self._eos_ids = tuple(eos_ids)
        self._variables = {"bos_token": "", "eos_token": "", **tokenizer.special_tokens_map}

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        max_characters: int | None = None,
        media: WrittenMedia | None = None,
    ) -> Prompt:
        """The token ids of a conversation, ready for the next answer.

        `template_kwargs` are variables of the template, such as enable_thinking. With `continue_final_message` the last
        message stays open, and the answer continues it. A text of more than `max_characters` is refused before it is
        tokenised. `media` are inserted where messages have parts of their kinds. Raises BadConversation.

        >>> chat.prompt([{"role": "user", "content": "Hi"}], template_kwargs={"enable_thinking": False}).text
        '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n'
        """
        markers = media.markers if media is not None else {}
        written = prepared(messages, self.system, markers if self._keeps_text else dict.fromkeys(markers, ""))
        text = self._render_with_tools(
            written,
            list(tools) if tools else None,
            template_kwargs or {},
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
        )
        if media is not None:
            text = _with_media(text, media)
        if not _is_unicode(text):
            raise BadConversation("The conversation contains half of a surrogate pair, which is not valid text.")
        if max_characters is not None and len(text) > max_characters:
            raise TooLong(f"The conversation has {len(text)} characters: more than the model's context can hold.")
        open_part = written[-1]["content"] if continue_final_message else text.rstrip()[-len(THINK) :]
        is_thinking = self.thinks and open_part.rfind(THINK) > open_part.rfind(END_OF_THINK)
        return Prompt(self._encode(text), text, bool(tools), is_thinking)

    @functools.cached_property
    def _keeps_text(self) -> bool:
        """Whether the template writes a turn's text unchanged. Some accept only content parts, of text and images."""
        try:
            return PROBE[0]["content"] in self._render(PROBE[:1], {}, add_generation_prompt=True)
        except BadConversation:
            return False

    def parser(self, prompt: Prompt) -> AnswerParser:
        """A parser for the answer to this prompt. It looks for calls if tools were offered."""
        return AnswerParser(self.thinks, self.syntax if prompt.has_tools else None, prompt.is_thinking)

    def parse(self, prompt: Prompt, text: str) -> Answer:
        """Parse a complete answer."""
        parser = self.parser(prompt)
        return whole([*parser.feed(text), *parser.end()])

    @functools.cached_property
    def stop_ids(self) -> frozenset[int]:
        """The tokens that end an answer: the tokenizer's, the model's own, and the one that the template writes."""
        ids = {*self._eos_ids, self.tokenizer.eos_token_id, self._end_of_turn()}
        return frozenset(number for number in ids if number is not None)

    def _end_of_turn(self) -> int | None:
        """The control token after an answer, after which the next question may follow."""
        try:
            after = self._render(PROBE, {}, add_generation_prompt=False).partition("Me!")[2]
        except BadConversation:
            return None
        first = self._encode(after.lstrip())[:1]
        return first[0] if first and first[0] in self.tokenizer.added_tokens_decoder else None

    @functools.cached_property
    def marker_ids(self) -> frozenset[int]:
        """Special tokens that the parser needs. Decoding with skip_special_tokens must keep them."""
        vocabulary = self.tokenizer.get_vocab()
        ids = {vocabulary[marker] for marker in MARKERS if marker in vocabulary}
        return frozenset(ids & set(self.tokenizer.all_special_ids))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids

    def _render_with_tools(
        self, messages: list[dict[str, Any]], tools: list[Any] | None, variables: Mapping[str, Any], **options: Any
    ) -> str:
        """Leave tools to the template. If it does not support them, describe them in the conversation."""
        if self.knows_tools:
            return self._render(messages, variables, tools=tools, **options)
        if "tool" not in self.template.text:
            messages = written_out(messages)
        if not tools:
            return self._render(messages, variables, tools=None, **options)
        try:
            return self._render(described(tools, messages, "system"), variables, tools=None, **options)
        except BadConversation:  # some templates do not accept a system message
            return self._render(described(tools, messages, "user"), variables, tools=None, **options)

    def _render(self, messages: list[dict[str, Any]], template_kwargs: Mapping[str, Any], **options: Any) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        options |= {"chat_template": self.template.text, **self._variables}
        if taken := sorted({*RESERVED, *options} & set(template_kwargs)):
            raise BadConversation(f"{', '.join(taken)} cannot be set as a variable of the chat template.")
        try:
            texts, _ = render_jinja_template([messages], **options, **template_kwargs)
        except Exception as error:  # a template is a program, which this conversation makes fail
            raise BadConversation(f"The chat template refuses this conversation: {error}.") from error
        return str(texts[0])


def _with_media(text: str, media: WrittenMedia) -> str:
    try:
        return Rendered(text, ()).expanded(media.texts).text
    except NotRendered as error:
        raise BadConversation(f"The conversation {error}.") from None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def writes_alike(tokenizer: Any, template: Template) -> bool:
    """Whether the tokenizer's own template renders a conversation exactly as this one does.

    If so, the tokenizer's should be kept, because it may also support tools.
    """
    if not getattr(tokenizer, "chat_template", None):
        return False
    own, other = (Chat(tokenizer, chosen) for chosen in (find_template(None, tokenizer), template))
    try:
        return all(
            own.prompt(turns, add_generation_prompt=asks).text == other.prompt(turns, add_generation_prompt=asks).text
            for turns in (PROBE, PROBE[:1], [{"role": "system", "content": "Be brief."}, *PROBE])
            for asks in (True, False)
        )
    except BadConversation:
        return False
