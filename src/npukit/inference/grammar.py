"""Answers that must follow a JSON schema, a regular expression, a choice or a grammar, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError

if TYPE_CHECKING:
    from llguidance import LLMatcher

ANY_OBJECT = {"type": "object"}


class Constraint:
    """What one answer may still say; the engine asks it before each token (see engine.request.Grammar)."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> bytes:
        """A bit mask over the vocabulary, lowest bit first: which tokens may come next."""
        return self._matcher.compute_bitmask()

    def accept(self, token: int) -> None:
        """Move on by a token that was chosen."""
        self._matcher.consume_token(token)

    def copy(self) -> Constraint:
        """The same constraint for another answer, as it stands now."""
        return Constraint(self._matcher.deep_copy())


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

        text = json.dumps(ANY_OBJECT if schema is None else schema)
        # Free white space lets a small model write blanks until its tokens are used up.
        return self._compile(LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_flexible": False}))

    def regex(self, pattern: str) -> Constraint:
        """Text that the whole regular expression matches."""
        from llguidance import LLMatcher

        return self._compile(LLMatcher.grammar_from_regex(pattern))

    def choice(self, choices: Sequence[str]) -> Constraint:
        """One of these texts."""
        return self.lark("start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices))

    def lark(self, grammar: str) -> Constraint:
        """Text that a grammar in Lark's notation derives from `start`; GBNF, with its `root ::=`, is read too."""
        from llguidance import LLMatcher, gbnf_to_lark

        if "::=" in grammar:
            try:
                grammar = gbnf_to_lark.any_to_lark(grammar)
            except Exception as error:  # its parser raises plain exceptions
                raise NpukitError(f"The grammar cannot be read: {error}") from error
        return self._compile(LLMatcher.grammar_from_lark(grammar))

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, whether or not they are text."""
        return self._tokenizer.decode_bytes([token])

    def _compile(self, grammar: str) -> Constraint:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise NpukitError(f"The grammar cannot be used: {matcher.get_error().strip()}")
        return Constraint(matcher)
