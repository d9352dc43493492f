"""Convert the other tools' templates to Jinja, so that a model trained with one can be used anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from npukit.llm.chat.peers.llama_factory import Slot, Slots
from npukit.llm.chat.peers.ms_swift import Meta
from npukit.llm.chat.peers.swift_agent import Context

ANSWER = "{%- generation %}{{- ANSWER }}{%- endgeneration %}"


def of_slots(slots: Slots) -> str:
    """LLaMA-Factory's template as Jinja, with the output of its `chat` command."""
    content = "message.content"
    if slots.kind == "system_in_question":
        content = f"(({_as_expression(slots.system, 'system')}) if loop.first and system else '') + message.content"
        above = ""
    else:
        above = "{%- if system %}{{- " + _as_expression(slots.system, "system") + " }}{%- endif %}"
    answer = _as_expression(slots.assistant, "message.content")
    if slots.efficient_eos:
        answer += " + (eos_token if loop.last else '')"
    if slots.reasons:
        first, last = (json.dumps(word.strip(), ensure_ascii=False) for word in slots.thought_words)
        empty = json.dumps(slots.empty_thought, ensure_ascii=False)
        answer = f"({empty} if {first} not in message.content and {last} not in message.content else '') + {answer}"
    return (
        _system(slots.default_system)
        + (f"{{{{- {_as_expression(slots.prefix, '')} }}}}" if slots.prefix else "")
        + above
        + "{%- for message in turns %}{%- if message.role == 'user' %}"
        + f"{{{{- {_as_expression(slots.user, content)} }}}}"
        + "{%- else %}"
        + ANSWER.replace("ANSWER", answer)
        + "{%- endif %}{%- endfor %}"
    )


def of_meta(meta: Meta) -> str:
    """ms-swift's template as Jinja."""
    question, answer = "message.content", "message.content"
    if meta.kind == "system_in_question":
        question = "((system + '\\n\\n') if loop.first and system else '') + message.content"
    if meta.non_thinking_prefix:
        prefix = json.dumps(meta.non_thinking_prefix, ensure_ascii=False)
        answer = f"('' if message.content.startswith('<think>') else {prefix}) + message.content"
    prompt = _contexts(meta.prompt, question)
    if meta.last_prompt is not None:
        last = _contexts(meta.last_prompt, question)
        prompt = f"({last} if system and loop.index0 >= (turns | length) - 2 else {prompt})"
    end = f"({_contexts(meta.suffix, '')} if loop.last else {_contexts(meta.separator or (), '')})"
    begin = _contexts(meta.prefix, "")
    if meta.system_prefix is not None:
        begin = f"({_contexts(meta.system_prefix, '')} if system else {begin})"
    bos = "{{- bos_token }}" if meta.begins_as_the_tokenizer else ""
    return (
        _system(meta.default_system or "")
        + bos
        + f"{{{{- {begin} }}}}"
        + "{%- for message in turns %}{%- if message.role == 'user' %}"
        + f"{{{{- {prompt} }}}}"
        + "{%- else %}"
        + ANSWER.replace("ANSWER", f"{answer} + {end}")
        + "{%- endif %}{%- endfor %}"
    )


def _system(default: str) -> str:
    """Statements that set `system` and `turns`."""
    otherwise = json.dumps(default, ensure_ascii=False)
    return (
        "{%- set has_system = messages and messages[0].role == 'system' %}"
        "{%- set system = messages[0].content if has_system else " + otherwise + " %}"
        "{%- set turns = messages[1:] if has_system else messages %}"
    )


def _as_expression(slots: Sequence[Slot], content: str) -> str:
    parts: list[str] = []
    for slot in slots:
        if isinstance(slot, dict):
            token = slot.get("token")
            name = slot.get("special", "")
            parts += [json.dumps(token, ensure_ascii=False)] if token else [name] if name.endswith("os_token") else []
        else:
            parts += _pieces(slot, {"{{content}}": f"({content})", "{{idx}}": "(loop.index0 // 2) | string"})
    return " + ".join(parts) or "''"


def _contexts(contexts: Iterable[Context], query: str) -> str:
    names = {
        "{{QUERY}}": f"({query})",
        "{{SYSTEM}}": "system",
        "{{ROUND0}}": "(loop.index0 // 2) | string",
        "{{ROUND1}}": "(loop.index0 // 2 + 1) | string",
    }
    parts: list[str] = []
    for context in contexts:
        if isinstance(context, str):
            parts += _pieces(context, names)
        else:
            parts += [part.removesuffix("_id") for part in context if part in ("bos_token_id", "eos_token_id")]
    return " + ".join(parts) or "''"


def _pieces(text: str, names: dict[str, str]) -> list[str]:
    """Text with placeholders as terms of a Jinja sum."""
    for mark, term in names.items():
        before, marked, after = text.partition(mark)
        if marked:
            return [*_pieces(before, names), term, *_pieces(after, names)]
    return [json.dumps(text, ensure_ascii=False)] if text else []
