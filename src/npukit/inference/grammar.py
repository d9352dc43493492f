"""Answers that must follow a JSON schema, a regular expression, a choice or a grammar, by llguidance."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from llguidance._lib import JsonCompileOptions

ANY_OBJECT = {"type": "object"}
NO_TEXT = {"NoExtensionBias": "there is no text that fits it"}
# With free white space, a small model may write blanks until its tokens are used up.
STYLE: JsonCompileOptions = {"whitespace_flexible": False}


@contextlib.contextmanager
def _errors_named() -> Iterator[None]:
    """Turn any error of llguidance into one about the grammar; a panic of its Rust code is not even an Exception."""
    try:
        yield
    except NpukitError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise NpukitError(f"The grammar cannot be used: {str(error).strip()}") from error
        raise


class Constraint:
    """What one answer may still contain; the engine asks it before each token (see engine.request.Grammar)."""

    def __init__(self, matcher: LLMatcher, grammar: str) -> None:
        self.grammar = grammar  # in llguidance's form, from which `Grammars.compile` makes the constraint again
        self._matcher = matcher
        self.allowed()  # some invalid grammars fail only here, such as a schema that refers only to itself

    def allowed(self) -> bytes:
        """A bit mask over the vocabulary, lowest bit first: which tokens may come next."""
        with _errors_named():
            mask = self._matcher.compute_bitmask()
            self._check()
        return mask

    def accept(self, token: int) -> None:
        """Advance by a sampled token."""
        with _errors_named():
            self._matcher.consume_token(token)
            self._check()

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow."""
        return self._matcher.is_stopped()

    def _check(self) -> None:
        """Raise the matcher's error, often a size limit: after one it would allow an end in the middle of the text."""
        if self._matcher.is_error():
            reason = self._matcher.get_error().replace("<non-verbose/>", "").strip()
            raise NpukitError(f"The grammar cannot be followed: {NO_TEXT.get(reason, reason)}")

    def copy(self) -> Constraint:
        """A copy in the same state, for another answer."""
        return Constraint(self._matcher.deep_copy(), self.grammar)


class Grammars:
    """Makes constraints for the answers of one model.

    >>> grammars = Grammars(tokenizer, vocabulary=151936, end_tokens=[151645])
    >>> Request(prompt, grammar=grammars.json({"type": "object", "properties": {"city": {"type": "string"}}}))
    """

    def __init__(self, tokenizer: Any, vocabulary: int, end_tokens: Iterable[int]) -> None:
        from llguidance.hf import from_tokenizer

        ends = sorted(end_tokens) or None
        try:
            self._tokenizer = from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=ends)
        except ValueError as error:
            raise NpukitError(f"Structured output does not work with this tokenizer: {error}") from error

    def json(self, schema: Mapping[str, Any] | None = None) -> Constraint:
        """JSON that follows the schema; without one, any JSON object."""
        from llguidance import LLMatcher

        with _errors_named():
            text = json.dumps(ANY_OBJECT if schema is None else schema)
            return self.compile(LLMatcher.grammar_from_json_schema(text, overrides={**STYLE}))

    def regex(self, pattern: str) -> Constraint:
        """Text that the whole regular expression matches."""
        from llguidance import LLMatcher

        with _errors_named():
            return self.compile(LLMatcher.grammar_from_regex(pattern))

    def choice(self, choices: Sequence[str]) -> Constraint:
        """One of these texts."""
        # One lexeme rather than a rule: thousands of texts compile quickly, and exceed no limit of the parser.
        texts = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        return self.lark("start: " + ("CHOICE\nCHOICE: " if all(choices) else "") + texts)

    def calls(self, tools: Sequence[tuple[str, Mapping[str, Any]]], max_calls: int) -> Constraint:
        """A JSON list of one to `max_calls` calls of these functions: names, and the schemas of their arguments.

        Each schema is a document of its own, so that its references mean what they mean in its tool.
        """
        further = f'("," call){{0,{max_calls - 1}}}' if max_calls > 1 else ""
        rules = [f'start: "[" call {further} "]"']
        rules.append("call: " + " | ".join(f"call_{number}" for number in range(len(tools))))
        with _errors_named():
            for number, (name, schema) in enumerate(tools):
                self.json(schema)  # checked alone, so that the error names it
                head = json.dumps(f'{{"name":{json.dumps(name)},"arguments":')
                rules.append(f'call_{number}: {head} arguments_{number} "}}"')
                rules.append(f"arguments_{number}: %json {json.dumps({**schema, 'x-guidance': STYLE})}")
        return self.lark("\n".join(rules), gbnf=False)

    def lark(self, grammar: str, gbnf: bool = True) -> Constraint:
        """Text that a grammar in Lark's notation derives from `start`; GBNF, with its `root ::=`, is read too."""
        from llguidance import LLMatcher, gbnf_to_lark

        with _errors_named():
            if gbnf and "::=" in grammar:
                grammar = gbnf_to_lark.any_to_lark(grammar)
            return self.compile(LLMatcher.grammar_from_lark(grammar))

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token, which may be no valid text."""
        return self._tokenizer.decode_bytes([token])

    def compile(self, grammar: str) -> Constraint:
        """A constraint from a grammar in llguidance's own form."""
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise NpukitError(f"The grammar cannot be used: {matcher.get_error().strip()}")
        return Constraint(matcher, grammar)
