"""Find the images, videos and audio of a row in any layout: in columns, or as parts of messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from npukit.llm.data.row import BadRow, Conversation
from npukit.llm.medium import COLUMNS, TAGS, Kind, MediaItem, Objects, RowMedia
from npukit.report.report import counted

TURNS = ("messages", "conversations", "conversation", "prompt", "completion", "chosen", "rejected", "rejected_messages")
PARTS: dict[str, Kind] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "video": "video",
    "video_url": "video",
    "input_video": "video",
    "audio": "audio",
    "audio_url": "audio",
    "input_audio": "audio",
}
SOURCES = (*PARTS, "url", "path", "source", "value")  # the key of the medium in such a part
OTHER_ANSWERS = [f"{answer}_{column}" for answer in ("rejected", "positive", "negative") for column in COLUMNS]
TAG = re.compile("|".join(TAGS.values()))
KINDS = {tag: kind for kind, tag in TAGS.items()}


def with_tags(row: dict[str, Any]) -> tuple[dict[str, Any], RowMedia]:
    """The row with tags such as <image> in place of media parts, and all its media; raises BadRow.

    >>> part = {"type": "image_url", "image_url": {"url": "cat.png"}}
    >>> with_tags({"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Who?"}]}]})
    ({'messages': [{'role': 'user', 'content': [{'type': 'text', 'text': '<image>'}, …]}]}, (MediaItem(…, 'cat.png'),))
    """
    if other := next((name for name in OTHER_ANSWERS if row.get(name)), None):
        raise BadRow(f"has {other}; images of one answer alone are not supported")
    in_columns = [MediaItem(kind, source) for column, kind in COLUMNS.items() for source in _listed(row, column)]
    in_parts: list[MediaItem] = []
    tagged = {name: _tagged(row[name], in_parts) for name in TURNS if isinstance(row.get(name), list)}
    if any(medium.source is None for medium in in_parts):  # parts that mark the positions of the columns' media
        if sorted(medium.kind for medium in in_parts) != sorted(medium.kind for medium in in_columns) or any(
            medium.source is not None for medium in in_parts
        ):
            raise BadRow(f"has {len(in_columns)} images, videos or audio files and {len(in_parts)} parts for them")
        in_parts = []
    if in_parts and in_columns:
        raise BadRow("has images, videos or audio in a column and in its messages: leave one of them out")
    media = RowMedia(in_columns or in_parts)
    media.objects = _objects(row.get("objects"))
    return {**row, **tagged}, media


def _objects(given: Any) -> Objects | None:
    """The column `objects` of ms-swift's rows; other columns of that name are ignored."""
    if not isinstance(given, dict) or not {"bbox", "ref"} & given.keys():
        return None
    names, boxes, images = (given.get(name) or [] for name in ("ref", "bbox", "image_id"))
    try:
        ordered = tuple(_ordered([float(number) for number in box]) for box in boxes)
        numbers = (*map(int, images), *[0] * (len(boxes) - len(images)))
    except (TypeError, ValueError):
        raise BadRow("has objects whose bbox and image_id are not lists of numbers") from None
    if any(len(box) not in (2, 4) for box in ordered) or not all(isinstance(name, str) for name in names):
        raise BadRow("has an object that is neither a point of 2 numbers nor a box of 4, or that has no name")
    return Objects(tuple(names), ordered, numbers, given.get("bbox_type") == "norm1")


def _ordered(box: list[float]) -> tuple[float, ...]:
    """Order the corners of a box, the upper left one first."""
    if len(box) != 4:
        return tuple(box)
    return min(box[0], box[2]), min(box[1], box[3]), max(box[0], box[2]), max(box[1], box[3])


def _listed(row: dict[str, Any], column: str) -> list[Any]:
    value = row.get(column)
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _tagged(turns: list[Any], media: list[MediaItem]) -> list[Any]:
    return [
        {**turn, "content": [_part(part, media) for part in turn["content"]]}
        if isinstance(turn, dict) and isinstance(turn.get("content"), list)
        else turn
        for turn in turns
    ]


def _part(part: Any, media: list[MediaItem]) -> Any:
    kind = kind_of_part(part)
    if kind is None:
        return part
    media.append(MediaItem(kind, source_of(part)))
    return {"type": "text", "text": TAGS[kind]}


def kind_of_part(part: Any) -> Kind | None:
    """The kind of a message part that is not text.

    >>> kind_of_part({"type": "video_url", "video_url": {"url": "cat.mp4"}})
    'video'
    """
    kind = part.get("type") if isinstance(part, dict) else None
    return PARTS.get(kind) if isinstance(kind, str) else None


def source_of(part: dict[str, Any]) -> Any:
    """The source of an image, video or audio part in the formats of OpenAI, Anthropic and transformers.

    >>> source_of({"type": "image_url", "image_url": {"url": "cat.png"}})
    'cat.png'
    """
    source = next((part[name] for name in SOURCES if part.get(name)), None)
    if isinstance(source, dict) and source.get("data"):
        kind = source.get("media_type") or f"{PARTS.get(part['type'], 'image')}/{source.get('format', 'png')}"
        source = f"data:{kind};base64,{source['data']}"
    return source.get("url", source) if isinstance(source, dict) else source


def spread(turns: Conversation, media: Sequence[MediaItem], tool: str) -> tuple[Conversation, list[MediaItem]]:
    """The conversation with one tag per medium, and the media in the order of their tags; raises BadRow if the numbers
    differ.

    As in ms-swift, missing tags are inserted before the first question, if there are none at all.

    >>> spread([{"role": "user", "content": "Who?"}], [MediaItem("image", "cat.png")], "npukit")
    ([{'role': 'user', 'content': '<image>Who?'}], [MediaItem(kind='image', source='cat.png')])
    """
    left = {kind: [medium for medium in media if medium.kind == kind] for kind in TAGS}
    missing = ""
    for kind, some in left.items():
        tags = sum(turn["content"].count(TAGS[kind]) for turn in turns)
        is_text = tool == "ms_swift" or (tool == "npukit" and not some)  # rows without media stay as they are
        if tags == len(some) or (tags > len(some) and is_text):
            continue
        if tags > len(some) or (tool != "ms_swift" and (tool != "npukit" or tags)):
            raise BadRow(f"has {counted(len(some), kind)}, and {TAGS[kind]} {counted(tags, 'time')} in its turns")
        missing += TAGS[kind] * (len(some) - tags)
    if missing:
        at = next(number for number, turn in enumerate(turns) if turn["role"] not in ("tools", "system"))
        turns = [*turns[:at], {**turns[at], "content": missing + turns[at]["content"]}, *turns[at + 1 :]]
    tags_in_order = (KINDS[tag] for turn in turns for tag in TAG.findall(turn["content"]))
    return turns, [left[kind].pop(0) for kind in tags_in_order if left[kind]]


def filled(turns: Conversation, media: Sequence[tuple[Kind, str]]) -> Conversation:
    """The conversation with the first tags of each kind replaced by these texts."""
    left = {kind: [text for other, text in media if other == kind] for kind in TAGS}

    def text_of(tag: re.Match[str]) -> str:
        texts = left[KINDS[tag[0]]]
        return texts.pop(0) if texts else tag[0]

    return [{**turn, "content": TAG.sub(text_of, turn["content"])} for turn in turns]


def in_parts(turns: Conversation, kinds: set[Kind]) -> list[dict[str, Any]]:
    """The conversation as transformers' multimodal templates expect it: media of these kinds are parts of turns.

    >>> in_parts([{"role": "user", "content": "<image>Who?"}], {"image"})
    [{'role': 'user', 'content': [{'type': 'image'}, {'type': 'text', 'text': 'Who?'}]}]
    """
    return [{**turn, "content": list(_parts(turn["content"], kinds))} for turn in turns]


def with_sources(turns: Conversation, media: Sequence[MediaItem]) -> list[dict[str, Any]]:
    """The same with each medium's source in its part.

    >>> with_sources([{"role": "user", "content": "<image>Who?"}], [MediaItem("image", "cat.png")])
    [{'role': 'user', 'content': [{'type': 'image', 'image': 'cat.png'}, {'type': 'text', 'text': 'Who?'}]}]
    """
    left = list(media)
    made = in_parts(turns, {medium.kind for medium in media})
    for turn in made:
        turn["content"] = [
            {**part, part["type"]: left.pop(0).source} if kind_of_part(part) else part for part in turn["content"]
        ]
    return made


def _parts(content: str, kinds: set[Kind]) -> Iterator[dict[str, str]]:
    done = 0
    for tag in TAG.finditer(content):
        if KINDS[tag[0]] not in kinds:
            continue
        if content[done : tag.start()]:
            yield {"type": "text", "text": content[done : tag.start()]}
        yield {"type": KINDS[tag[0]]}
        done = tag.end()
    if content[done:]:
        yield {"type": "text", "text": content[done:]}
