"""Objects that a row refers to in its images: names and boxes in place of <ref-object> and <bbox>."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from npukit.llm.data.row import BadRow, Conversation
from npukit.llm.families.vision import BoxRule
from npukit.llm.images.resize import Size
from npukit.llm.medium import Objects

NAME, BOX = "<ref-object>", "<bbox>"


def pointed_at(
    turns: Conversation, objects: Objects, rule: BoxRule, sizes: Sequence[tuple[Size, Size]]
) -> Conversation:
    """Replace each tag by the next name or box, as ms-swift does; `sizes` are those of the images, in pixels and in the
    unit of boxes. Raises BadRow.

    >>> cat = Objects(("cat",), ((0.0, 0.0, 320.0, 480.0),), (0,))
    >>> turns = [{"role": "assistant", "content": "The <ref-object> is at <bbox>."}]
    >>> pointed_at(turns, cat, BoxRule(), [((640, 480), (1000, 1000))])
    [{'role': 'assistant', 'content': 'The cat is at [(0,0),(500,1000)].'}]
    """
    if any(not 0 <= number < len(sizes) for number in objects.images):
        raise BadRow(f"has an object in image {max(objects.images)}, and {len(sizes)} images, which are counted from 0")
    texts = {NAME: (rule.name.format(name=name) for name in objects.names), BOX: _boxes(objects, rule, sizes)}

    def text_of(tag: re.Match[str]) -> str:
        return next(texts[tag[0]], tag[0])

    return [{**turn, "content": re.sub(f"{NAME}|{BOX}", text_of, turn["content"])} for turn in turns]


def _boxes(objects: Objects, rule: BoxRule, sizes: Sequence[tuple[Size, Size]]) -> Iterator[str]:
    for box, image in zip(objects.boxes, objects.images, strict=True):
        whole, target = sizes[image]
        size = (1, 1) if objects.are_shares else whole
        scaled = [round(number / size[at % 2] * target[at % 2]) for at, number in enumerate(box)]
        points = ",".join(f"({x},{y})" for x, y in zip(scaled[::2], scaled[1::2], strict=True))
        yield rule.box.format(points=points, numbers=scaled)
