"""Data: rows as the model will see them."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Any

from starlette.routing import Route

from npukit.errors import NpukitError
from npukit.studio.studio import Studio, Wrong, number, text

LOOKED_AT = 2000  # rows that are tokenised for the histogram
SHOWN = 10  # rows of a page
BAD = 100
BARS = 24
MOST_TOKENS = 1500  # of a row that is shown


def routes(studio: Studio) -> list[Route]:
    async def preview(given: dict[str, Any]) -> Any:
        names = ("model", "data", "template", "task", "tokens")
        wanted = {name: text(given, name, "", longest=4096) for name in names}
        if not wanted["model"] or not wanted["data"]:
            raise Wrong("Choose a model and a data set.")
        for name in ("model", "data", "template"):
            studio.folders.check(wanted[name].partition("#")[0])
        wanted["folder"] = text(given, "folder", "data", longest=4096)
        studio.folders.inside(wanted["folder"])
        cutoff, page = number(given, "cutoff", 2048, 1, 2**22), number(given, "page", 0, 0, 10**6)
        return await studio.workers.do(look, wanted, cutoff, page)

    return [studio.post("/api/data/preview", preview, changes=False)]


def look(wanted: dict[str, str], cutoff: int, page: int) -> dict[str, Any]:
    """Some rows of a data set as tokens, of which some count; the lengths of rows; rows that cannot be used."""
    from npukit.llm.chat.templates import find_template
    from npukit.llm.config.options import DataOptions, Source
    from npukit.llm.data.check import find_layout, row_of
    from npukit.llm.data.encode import Encoder
    from npukit.llm.data.row import BadRow, LeftOut, Row
    from npukit.llm.data.sources import find_table
    from npukit.llm.tasks import known

    task = known().get(wanted["task"] or "sft")
    if task is None:
        raise NpukitError(f"There is no task {wanted['task']}.")
    options = DataOptions(
        train=(Source(path=wanted["data"]),),
        template=wanted["template"] or None,
        cutoff=cutoff,
        folder=wanted["folder"],
        tokens=wanted["tokens"] or "npukit",
    )
    tokenizer = _tokenizer(wanted["model"])
    table = find_table(options.train[0], options)
    if table.hub:
        raise NpukitError(f"{wanted['data']} is not on this machine: the studio shows files in its folders.")
    template = find_template(options.template, tokenizer, options.tokens)
    records = list(islice(table.records(), LOOKED_AT))
    layout = find_layout(records, table, task)
    places: list[str] = []
    rows: list[Row] = []
    bad: list[dict[str, str]] = []
    for record in records:
        try:
            rows.append(row_of(record, layout, task))
            places.append(record.place)
        except LeftOut:
            continue
        except BadRow as error:
            bad.append({"place": record.place, "why": str(error)})
    encoder = Encoder(options, task, tokenizer, template)
    encoded = []
    for place, result in zip(places, encoder.encode(rows), strict=True):
        if isinstance(result, BadRow):
            bad.append({"place": place, "why": str(result)})
        else:
            encoded += [(place, each) for each in result]
    lengths = [len(each.tokens) for _, each in encoded]
    shown = encoded[page * SHOWN : (page + 1) * SHOWN]
    return {
        "rows": [{"place": place, "length": len(each.tokens), **_tokens(each, tokenizer)} for place, each in shown],
        "looked_at": len(records),
        "usable": len(encoded),
        "pages": -(-len(encoded) // SHOWN),
        "bad": bad[:BAD],
        "bad_count": len(bad),
        "cut": sum(each.was_cut for _, each in encoded),
        "histogram": _histogram(lengths),
        "template": template.name,
        "format": layout.format,
        "counted": sum(int((each.tokens >= 0).sum()) for _, each in encoded),
        "total": sum(lengths),
    }


@lru_cache(maxsize=4)
def _tokenizer(model: str) -> Any:
    from npukit.llm.config.options import ModelOptions
    from npukit.llm.models.folder import find_parts
    from npukit.llm.models.loading import load_tokenizer

    folder, adapters = find_parts(model)
    place = next((each for each in adapters if (each / "tokenizer_config.json").is_file()), folder)
    return load_tokenizer(ModelOptions(path=model), str(place))


def _tokens(encoded: Any, tokenizer: Any) -> dict[str, Any]:
    """Pieces of text and whether they count; tokens that are parts of one character are shown as one piece."""
    from npukit.llm.data.encode import END, MORE, SEPARATOR

    pieces: list[dict[str, Any]] = []
    waiting: list[int] = []
    for value in encoded.tokens[:MOST_TOKENS].tolist():
        if value == SEPARATOR:
            pieces.append({"text": "", "counts": False, "id": None})
            continue
        counts = value >= 0
        token = (value % END) % MORE if counts else ~value
        waiting.append(token)
        decoded = tokenizer.decode(waiting)
        if "\ufffd" in decoded and len(waiting) < 4:
            continue
        pieces.append({"text": decoded, "counts": counts, "id": waiting[0], "tokens": len(waiting)})
        waiting = []
    more = max(0, len(encoded.tokens) - MOST_TOKENS)
    return {"pieces": pieces, "more": more, "cut": encoded.was_cut, "counted": int((encoded.tokens >= 0).sum())}


def _histogram(lengths: list[int]) -> list[dict[str, int]]:
    if not lengths:
        return []
    width = max(1, -(-(max(lengths) + 1) // BARS))
    counts = [0] * (max(lengths) // width + 1)
    for length in lengths:
        counts[length // width] += 1
    return [{"from": at * width, "to": (at + 1) * width - 1, "rows": count} for at, count in enumerate(counts)]
