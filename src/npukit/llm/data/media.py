"""Images of a row, wherever its layout has them: in a column, or as parts of messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from npukit.llm.data.row import BadRow, Conversation

IMAGE = "<image>"  # stands for an image in a turn, as in LLaMA-Factory and ms-swift
UNREAD = ("videos", "audios")
TURNS = ("messages", "conversations", "conversation", "prompt", "completion", "chosen", "rejected", "rejected_messages")
IMAGE_PARTS = ("image", "image_url", "input_image")
SOURCES = ("image", "image_url", "url", "path", "source")  # what has the image in such a part


def with_tags(row: dict[str, Any]) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """The row with <image> in the place of parts that are images, and all its images in order; raises BadRow.

    >>> part = {"type": "image_url", "image_url": {"url": "cat.png"}}
    >>> with_tags({"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Who?"}]}]})
    ({'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': '<image>'}, …]}]}, ('cat.png',))
    """
    if media := next((name for name in UNREAD if row.get(name)), None):
        raise BadRow(f"has {media}; only text and images are supported")
    images = _listed(row.get("images"))
    in_parts: list[Any] = []
    tagged = {name: _tagged(row[name], in_parts) for name in TURNS if isinstance(row.get(name), list)}
    if None in in_parts:  # parts that say where the images of the column go
        if len(in_parts) != len(images) or any(image is not None for image in in_parts):
            raise BadRow(f"has {len(images)} images and {len(in_parts)} parts for them")
        in_parts = []
    if in_parts and images:
        raise BadRow("has images in a column and in its messages: leave one of them out")
    return {**row, **tagged}, tuple(images or in_parts)


def _listed(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _tagged(turns: list[Any], images: list[Any]) -> list[Any]:
    return [
        {**turn, "content": [_part(part, images) for part in turn["content"]]}
        if isinstance(turn, dict) and isinstance(turn.get("content"), list)
        else turn
        for turn in turns
    ]


def _part(part: Any, images: list[Any]) -> Any:
    if not is_image(part):
        return part
    images.append(source_of(part))
    return {"type": "text", "text": IMAGE}


def is_image(part: Any) -> bool:
    """Whether a part of a message is an image.

    >>> is_image({"type": "image_url", "image_url": {"url": "cat.png"}})
    True
    """
    return isinstance(part, dict) and part.get("type") in IMAGE_PARTS


def source_of(part: dict[str, Any]) -> Any:
    """An image as OpenAI, Anthropic and transformers write it in a message.

    >>> source_of({"type": "image_url", "image_url": {"url": "cat.png"}})
    'cat.png'
    """
    found = next((part[name] for name in SOURCES if part.get(name)), None)
    if isinstance(found, dict) and found.get("data"):
        found = f"data:{found.get('media_type', 'image/png')};base64,{found['data']}"
    return found.get("url", found) if isinstance(found, dict) else found


def spread(turns: Conversation, images: int, tool: str) -> Conversation:
    """The conversation with one <image> for every image; raises BadRow where they are not as many.

    ms-swift writes those that are missing before the first question, and so do we where there is none at all.
    """
    tags = sum(turn["content"].count(IMAGE) for turn in turns)
    if tags == images or (tags > images and tool == "ms_swift"):
        return turns
    if tool == "ms_swift" or (tool == "npukit" and not tags):
        at = next(number for number, turn in enumerate(turns) if turn["role"] not in ("tools", "system"))
        first = {**turns[at], "content": IMAGE * (images - tags) + turns[at]["content"]}
        return [*turns[:at], first, *turns[at + 1 :]]
    raise BadRow(f"has {images} images, and {IMAGE} {tags} times in its turns")


def filled(turns: Conversation, texts: list[str]) -> Conversation:
    """The conversation with these texts in the place of its first <image>s."""
    left = list(texts)
    made = []
    for turn in turns:
        pieces = turn["content"].split(IMAGE)
        content = pieces[0]
        for piece in pieces[1:]:
            content += (left.pop(0) if left else IMAGE) + piece
        made.append({**turn, "content": content})
    return made


def in_parts(turns: Conversation) -> list[dict[str, Any]]:
    """The conversation as transformers' templates of such models want it, with images as parts of turns.

    >>> in_parts([{"role": "user", "content": "<image>Who?"}])
    [{'role': 'user', 'content': [{'type': 'image'}, {'type': 'text', 'text': 'Who?'}]}]
    """
    return [{**turn, "content": list(_parts(turn["content"]))} for turn in turns]


def with_sources(turns: Conversation, images: Sequence[Any]) -> list[dict[str, Any]]:
    """The same with what each image is in its part.

    >>> with_sources([{"role": "user", "content": "<image>Who?"}], ["cat.png"])
    [{'role': 'user', 'content': [{'type': 'image', 'image': 'cat.png'}, {'type': 'text', 'text': 'Who?'}]}]
    """
    sources = iter(images)
    made = in_parts(turns)
    for turn in made:
        turn["content"] = [{**part, "image": next(sources)} if is_image(part) else part for part in turn["content"]]
    return made


def _parts(content: str) -> Iterator[dict[str, str]]:
    for number, piece in enumerate(content.split(IMAGE)):
        if number:
            yield {"type": "image"}
        if piece:
            yield {"type": "text", "text": piece}
