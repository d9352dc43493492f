"""Tokens become text piece by piece: the pieces are the whole, characters stay whole, stop strings never show."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npukit.inference.text import BROKEN, LONGEST, TextStream

TEXTS = ["The capital of France is Paris.", "日本語と中文、混合。", "🙂👩‍👩‍👧 flags 🇩🇪", "a\n\nb  c\t", "é̀ñ", " lead"]


def stream(tokenizer: Any, ids: list[int], **options: Any) -> tuple[list[str], TextStream]:
    text = TextStream(tokenizer, **options)
    return [*(text.add(token) for token in ids), text.end()], text


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_text_and_no_character_is_split(tiny_tokenizer: Any, text: str) -> None:
    pieces, _ = stream(tiny_tokenizer, tiny_tokenizer.encode(text))
    assert "".join(pieces) == text
    assert not any(BROKEN in piece for piece in pieces)


@given(st.lists(st.integers(0, 399), max_size=80))
def test_any_tokens_give_what_decoding_them_at_once_gives(tiny_tokenizer: Any, ids: list[int]) -> None:
    pieces, _ = stream(tiny_tokenizer, ids)
    whole = tiny_tokenizer.decode(ids, skip_special_tokens=True)
    if len(ids) <= LONGEST:
        assert "".join(pieces) == whole
    assert "".join(pieces).replace(BROKEN, "") == whole.replace(BROKEN, "")


def test_sentencepiece_bytes_and_leading_spaces() -> None:
    from tokenizers import Tokenizer, decoders, models

    words = ["<unk>", "▁Hi", "▁there", *(f"<0x{byte:02X}>" for byte in "你".encode())]
    tokenizer = Tokenizer(models.Unigram([(word, -1.0) for word in words], unk_id=0, byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )

    class Wrapped:
        backend_tokenizer = tokenizer
        added_tokens_decoder: ClassVar[dict[int, object]] = {}
        all_special_ids = (0,)

    pieces, _ = stream(Wrapped(), [1, 2, 3, 4, 5, 2])
    assert pieces == ["Hi", " there", "", "", "你", " there", ""]


@pytest.mark.parametrize("text", ["one two STOP three", "one two STO", "one two SSTOP", "STOP", "one two ST\n", ""])
def test_a_stop_string_ends_the_text_and_its_beginning_is_never_shown(tiny_tokenizer: Any, text: str) -> None:
    pieces, answer = stream(tiny_tokenizer, tiny_tokenizer.encode(text), stops=["STOP", "\n"])
    kept = text.partition("STOP")[0].partition("\n")[0]
    assert "".join(pieces) == kept
    assert answer.stopped == ("STOP" if "STOP" in text else "\n" if "\n" in text else None)


def test_a_stop_string_can_be_kept_and_the_earliest_counts(tiny_tokenizer: Any) -> None:
    ids = tiny_tokenizer.encode("one two three")
    assert "".join(stream(tiny_tokenizer, ids, stops=["three", "two"], keep_stop=True)[0]) == "one two"


def test_special_tokens_are_hidden_unless_wanted(tiny_tokenizer: Any) -> None:
    ids = tiny_tokenizer.encode("<|im_start|>Hi<|im_end|>")
    assert "".join(stream(tiny_tokenizer, ids)[0]) == "Hi"
    assert "".join(stream(tiny_tokenizer, ids, hidden=())[0]) == "<|im_start|>Hi<|im_end|>"
