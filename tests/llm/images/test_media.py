"""Images of rows: where layouts have them, how they become tokens, and what is said of those that cannot be used."""

from __future__ import annotations

import base64
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.hostile_media import HOSTILE, USABLE, noise, saved

from npukit.errors import NpukitError
from npukit.llm.chat.templates import find_template
from npukit.llm.config.options import DataOptions
from npukit.llm.data.encode import Encoded, Encoder
from npukit.llm.data.layout import lay_out
from npukit.llm.data.row import BadRow, Illustrated, Layout
from npukit.llm.images import files
from npukit.llm.images.files import BadImage, locate, read_image, read_size
from npukit.llm.images.images import Images
from npukit.llm.medium import MediaItem
from npukit.llm.models.loading import load_config, load_images, load_tokenizer
from npukit.llm.tasks.task import named

ASKED = {"role": "user", "content": "<image>Who?"}
ANSWERED = {"role": "assistant", "content": "A cat."}
URL = {"type": "image_url", "image_url": {"url": "a.png"}}
PARTS = [URL, {"type": "text", "text": "Who?"}]
VALUES = [{"type": "image_url", "value": "a.png"}, {"type": "text", "value": "Who?"}]
ANTHROPIC = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
LAYOUTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "alpaca": ("alpaca", {"instruction": "<image>Who?", "output": "A cat.", "images": ["a.png"]}, "a.png"),
    "one path": ("alpaca", {"instruction": "<image>Who?", "output": "A cat.", "images": "a.png"}, "a.png"),
    "sharegpt": (
        "sharegpt",
        {
            "conversations": [{"from": "human", "value": "<image>Who?"}, {"from": "gpt", "value": "A cat."}],
            "images": ["a.png"],
        },
        "a.png",
    ),
    "messages": ("messages", {"messages": [ASKED, ANSWERED], "images": ["a.png"]}, "a.png"),
    "query": ("messages", {"query": "<image>Who?", "response": "A cat.", "images": ["a.png"]}, "a.png"),
    "prompt": ("prompt", {"prompt": "<image>Who?", "completion": "A cat.", "images": ["a.png"]}, "a.png"),
    "OpenAI": ("messages", {"messages": [{"role": "user", "content": PARTS}, ANSWERED]}, "a.png"),
    "LLaMA-Factory's later format": (
        "messages",
        {
            "messages": [
                {"role": "user", "content": VALUES},
                {"role": "assistant", "content": [{"type": "text", "value": "A cat."}]},
            ]
        },
        "a.png",
    ),
    "transformers": (
        "messages",
        {
            "messages": [{"role": "user", "content": [{"type": "image"}, PARTS[1]]}, ANSWERED],
            "images": [{"bytes": b"x", "path": None}],
        },
        {"bytes": b"x", "path": None},
    ),
    "Anthropic": (
        "messages",
        {"messages": [{"role": "user", "content": [ANTHROPIC, PARTS[1]]}, ANSWERED]},
        "data:image/png;base64,QUJD",
    ),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_every_layout_has_its_images(case: str) -> None:
    format, row, image = LAYOUTS[case]
    found = lay_out(row, Layout(format))
    assert isinstance(found, Illustrated) and found.media == (MediaItem("image", image),)
    assert found.turns == [ASKED, ANSWERED]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": PARTS}, ANSWERED], "images": ["b.png"]},
        {"messages": [{"role": "user", "content": [{"type": "image"}, PARTS[1]]}, ANSWERED], "images": ["b", "c"]},
    ],
)
def test_images_that_do_not_fit_their_row_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(BadRow):
        lay_out(row, Layout("messages"))


def images(*names: str) -> tuple[MediaItem, ...]:
    return tuple(MediaItem("image", name) for name in names)


def encoder(folder: Path, **options: Any) -> Encoder:
    data = DataOptions.model_validate({"train": ["rows.jsonl"], "packing": False, **options})
    model = type("Model", (), {"path": str(folder), "revision": None, "trust_remote_code": False, "rope": {}})()
    model.new_tokens = ()
    tokenizer = load_tokenizer(model, str(folder))
    seen = load_images(model, str(folder), load_config(model, str(folder)), data)
    return Encoder(data, named("sft"), tokenizer, find_template(data.template, tokenizer, data.tokens), seen)


def of(found: list[Encoded] | BadRow) -> list[int]:
    assert isinstance(found, list), found
    return np.where(found[0].tokens < 0, ~found[0].tokens, found[0].tokens).tolist()


def test_ids_and_pixels_are_those_of_the_processor(seeing_models: Callable[[str], Path], pictures: Path) -> None:
    """Tokens of two pictures in one conversation, by the parts that transformers' own processor is made of."""
    from transformers import AutoImageProcessor, AutoTokenizer

    folder = seeing_models("qwen2_5_vl")
    made = encoder(folder, media_dir=pictures)
    turns = [
        {"role": "user", "content": "<image>One <image>two?"},
        {"role": "assistant", "content": "Two."},
    ]
    (row,) = made.encode([Illustrated(turns, images("a.png", "c.png"))])
    processor, tokenizer = AutoImageProcessor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    seen = processor(images=[Image.open(pictures / name) for name in ("a.png", "c.png")], return_tensors="np")
    parts = [{"type": "image"}, {"type": "text", "text": "One "}, {"type": "image"}, {"type": "text", "text": "two?"}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": parts}, {"role": "assistant", "content": "Two."}], tokenize=False
    )
    pieces = text.split("<|image_pad|>")
    counts = seen["image_grid_thw"].prod(1) // 4
    whole = pieces[0] + "".join("<|image_pad|>" * n + piece for n, piece in zip(counts, pieces[1:], strict=True))
    assert of(row) == tokenizer.encode(whole, add_special_tokens=False)
    assert isinstance(row, list) and made.images
    pixels, grids = made.images.pixels(row[0].images)
    assert np.array_equal(pixels, seen["pixel_values"]) and grids == [tuple(each) for each in seen["image_grid_thw"]]


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_are_those_of_the_model(family: str, seeing_models: Callable[[str], Path], pictures: Path) -> None:
    import torch
    from transformers import AutoModelForImageTextToText

    made = encoder(seeing_models(family), media_dir=pictures)
    turns = [{"role": "user", "content": "a <image>b<image> c"}, {"role": "assistant", "content": "Two."}]
    (row,) = made.encode([Illustrated(turns, images("c.png", "e.png"))])
    assert isinstance(row, list) and made.images
    ids = np.array(of(row))
    found = made.images.positions(ids, row[0].images)
    model = AutoModelForImageTextToText.from_pretrained(seeing_models(family))
    kinds = torch.from_numpy(made.images.is_image(ids)).int()[None]
    grids = torch.tensor([each.size.grid for each in row[0].images])
    wanted, _ = model.model.get_rope_index(torch.from_numpy(ids)[None], kinds, image_grid_thw=grids)
    assert np.array_equal(found, wanted[:, 0].numpy())


def test_sizes_by_the_header_are_those_that_the_processor_makes(seeing_models: Callable[[str], Path]) -> None:
    made = encoder(seeing_models("qwen2_vl")).images
    assert made
    pick = np.random.default_rng(0)
    for width, height in [*pick.integers(20, 400, (40, 2)).tolist(), (30, 2000), (2000, 30), (28, 28)]:
        seen = made.processor(images=[Image.new("RGB", (width, height))], return_tensors="np")
        size = made.vision.size(made.processor, None, width, height, {})
        assert [size.grid] == [tuple(each) for each in seen["image_grid_thw"]]


def test_llama_factory_resizes_twice(seeing_models: Callable[[str], Path], tmp_path: Path) -> None:
    """Its own first, to image_max_pixels, in the mode of the file; then the processor's."""
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), np.uint8)
    Image.fromarray(noise).convert("P").save(tmp_path / "p.png")
    made = encoder(
        seeing_models("qwen2_vl"),
        media_dir=tmp_path,
        tokens="llama_factory",
        template="qwen2_vl",
        image_max_pixels=20_000,
    )
    turns = [{"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": "A cat."}]
    (row,) = made.encode([Illustrated(turns, images("p.png"))])
    opened = Image.open(tmp_path / "p.png")
    first = opened.resize((int(400 * (20_000 / 120_000) ** 0.5), int(300 * (20_000 / 120_000) ** 0.5))).convert("RGB")
    assert made.images
    seen = made.images.processor(images=[first], return_tensors="np")
    assert isinstance(row, list)
    assert np.array_equal(made.images.pixels(row[0].images)[0], seen["pixel_values"])
    assert int(made.images.is_image(np.array(of(row))).sum()) == seen["image_grid_thw"].prod() // 4


def test_ms_swift_resizes_once(seeing_models: Callable[[str], Path], pictures: Path) -> None:
    """As qwen_vl_utils does, within MAX_PIXELS, and not again in the processor; missing tags come first."""
    made = encoder(
        seeing_models("qwen2_vl"),
        media_dir=pictures,
        tokens="ms_swift",
        template="qwen2_vl",
        image_max_pixels=28**2 * 9,
    )
    (row,) = made.encode([Illustrated([{**ASKED, "content": "Who?"}, ANSWERED], images("c.png"))])
    assert made.images and isinstance(row, list)
    resized = Image.open(pictures / "c.png").resize((56, 84))
    seen = made.images.processor(images=[resized], return_tensors="np", do_resize=False)
    assert np.array_equal(made.images.pixels(row[0].images)[0], seen["pixel_values"])
    assert int(made.images.is_image(np.array(of(row))).sum()) == 6
    text = made.images.vision.marker.replace("<|image_pad|>", "<|image_pad|>" * 6)
    assert f"user\n{text}Who?" in load_text(made, of(row))


def test_ms_swift_scales_down_before_that(seeing_models: Callable[[str], Path], pictures: Path) -> None:
    """Images of more than max_pixels, for every family, with bilinear sampling."""
    made = encoder(seeing_models("llava"), media_dir=pictures, tokens="ms_swift", image_scaled_pixels=1500)
    (row,) = made.encode([Illustrated([{**ASKED, "content": "<image>Who?"}, ANSWERED], images("c.png"))])
    picture = Image.open(pictures / "c.png").convert("RGB")
    factor = (1500 / (picture.width * picture.height)) ** 0.5
    small = picture.resize((int(picture.width * factor), int(picture.height * factor)), Image.Resampling.BILINEAR)
    assert made.images and isinstance(row, list) and small.size != picture.size
    seen = made.images.processor(images=[small], return_tensors="np")
    assert np.array_equal(made.images.pixels(row[0].images)[0], seen["pixel_values"])


@pytest.mark.parametrize(
    ("family", "objects", "written"),
    [
        (
            "qwen2_vl",
            {"ref": ["cat"], "bbox": [[60, 45, 30, 90]]},
            "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(500,333),(1000,667)<|box_end|>",
        ),
        (
            "qwen2_5_vl",
            {"ref": ["cat"], "bbox": [[60, 135]]},
            "<|object_ref_start|>cat<|object_ref_end|><|box_start|>(56,140)<|box_end|>",
        ),
        ("llava", {"ref": ["cat"], "bbox": [[0.5, 0.25]], "bbox_type": "norm1"}, "cat[(500,250)]"),
        ("internvl", {"ref": ["cat"], "bbox": [[30, 45, 60, 90]]}, "<ref>cat</ref><box>[[500, 333, 1000, 667]]</box>"),
    ],
)
def test_objects_are_written_as_ms_swift_does(
    family: str, objects: dict[str, Any], written: str, seeing_models: Callable[[str], Path], tmp_path: Path
) -> None:
    """A picture of 60 x 135 pixels; boxes are thousandths of its sides, or pixels after it was resized."""
    Image.new("RGB", (60, 135)).save(tmp_path / "a.png")
    turns = [ASKED, {"role": "assistant", "content": "<ref-object><bbox> and <bbox>"}]
    row = lay_out({"messages": turns, "images": ["a.png"], "objects": objects}, Layout("messages"))
    made = encoder(seeing_models(family), media_dir=tmp_path)
    (found,) = made.encode([row])
    assert f"{written} and <bbox><|im_end|>" in load_text(made, of(found))


@pytest.mark.parametrize("wrong", [{"bbox": [[1, 2, 3]]}, {"bbox": ["cat"]}, {"bbox": [[1, 2]], "image_id": [1]}])
def test_objects_that_are_none_are_refused(
    wrong: dict[str, Any], seeing_models: Callable[[str], Path], pictures: Path
) -> None:
    row = {"messages": [ASKED, ANSWERED], "images": ["a.png"], "objects": wrong}
    with pytest.raises(BadRow, match="object"):
        (found,) = encoder(seeing_models("qwen2_vl"), media_dir=pictures).encode([lay_out(row, Layout("messages"))])
        assert isinstance(found, BadRow)
        raise found


def load_text(made: Encoder, ids: list[int]) -> str:
    return str(made.tokenizer.decode(ids))


@pytest.mark.parametrize(
    ("turns", "names", "code"),
    [
        ([{"role": "user", "content": "<image><image>?"}, ANSWERED], ("a.png",), "1 image, and <image> 2 times"),
        ([ASKED, ANSWERED], ("a.png", "b.png"), "2 images, and <image> 1 time "),
        ([ASKED, ANSWERED], ("z.png",), "z.png does not exist"),
        ([{"role": "user", "content": "<image><|image_pad|>"}, ANSWERED], ("a.png",), "<|image_pad|>"),
    ],
)
def test_rows_whose_images_do_not_fit_say_so(
    turns: Any, names: Any, code: str, seeing_models: Callable[[str], Path], pictures: Path
) -> None:
    (found,) = encoder(seeing_models("qwen2_vl"), media_dir=pictures).encode([Illustrated(turns, images(*names))])
    assert isinstance(found, BadRow) and code in str(found)


def test_a_row_that_is_cut_inside_an_image_is_refused(seeing_models: Callable[[str], Path], pictures: Path) -> None:
    made = encoder(seeing_models("qwen2_vl"), media_dir=pictures, cutoff=24)
    (found,) = made.encode([Illustrated([ASKED, ANSWERED], images("c.png"))])
    assert isinstance(found, BadRow) and "data.cutoff" in str(found)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_get_one_sentence(case: str, tmp_path: Path) -> None:
    content, code = HOSTILE[case]
    file = tmp_path / "cat.png"
    file.write_bytes(content)
    with pytest.raises(BadImage, match=code) as error:
        read_size(file, turns=True)
        read_image(file, turns=True)
    assert str(file) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("case", USABLE)
def test_unusual_files_are_read(case: str, tmp_path: Path) -> None:
    content, size = USABLE[case]
    file = tmp_path / "cat.png"
    file.write_bytes(content)
    assert read_size(file, turns=True) == size == read_image(file, turns=True).convert("RGB").size


def test_no_picture_takes_much_memory() -> None:
    """What a bomb would unpack to was never there."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for content, _ in HOSTILE.values():
        with pytest.raises(BadImage):
            read_size(content, turns=True, name="bomb")
            read_image(content, turns=True, name="bomb")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def test_sixteen_bits_of_gray_are_not_white() -> None:
    content = USABLE["sixteen bits"][0]
    assert np.asarray(read_image(content, turns=True, name="gray")).max() == 0x80


def test_a_long_thin_image_is_refused_by_a_model_of_grids(seeing_models: Callable[[str], Path], tmp_path: Path) -> None:
    Image.new("RGB", (1, 20_000)).save(tmp_path / "thin.png")
    made = encoder(seeing_models("qwen2_vl"), media_dir=tmp_path).images
    assert made
    with pytest.raises(BadImage, match="200 times"):
        made.measure(MediaItem("image", "thin.png"))


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    noise().save(tmp_path / "secret.png")
    (media / "link.png").symlink_to(tmp_path / "secret.png")
    (media / "folder.png").mkdir()
    (media / "round.png").symlink_to(media / "round.png")
    os.mkfifo(media / "pipe.png")
    codes = {
        "link.png": "outside",
        "../secret.png": "outside",
        "none.png": "does not exist",
        "folder.png": "not a file",
        "https://example.com/cat.png": "nothing is fetched",
        "file:///etc/passwd": "nothing is fetched",
        "data:image/png;base64,?!": "base64",
        "data:image/png,%89PNG": "does not exist",
        "n" * 300 + ".png": "not a file",
        "~nobody_such/cat.png": "not a file",
        "cat\0.png": "does not exist",
        "/dev/zero": "outside|not a file",
        "pipe.png": "not a file",
        "round.png": "does not exist",
    }
    for name, code in codes.items():
        with pytest.raises(BadImage, match=code):
            locate(name, tmp_path, media)
    for nothing in (None, 7, {}, "", {"bytes": None, "path": None}):
        with pytest.raises(BadImage):
            locate(nothing, tmp_path, media)


def test_large_files_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large.png"
    noise().save(file)
    monkeypatch.setattr(files, "MAX_BYTES", 100)
    with pytest.raises(BadImage, match="MiB"):
        read_size(file, turns=True)
    with pytest.raises(BadImage, match="MiB"):
        locate(f"data:image/png;base64,{'A' * 400}", tmp_path)


def test_bytes_and_data_uris_become_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path))
    content = saved(noise(), "PNG")
    uri = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    found = {locate(each, tmp_path) for each in (content, uri, {"bytes": content, "path": "x"})}
    assert len(found) == 1 and found.pop().read_bytes() == content


def test_what_is_damaged_behind_its_header_names_row_and_file(
    seeing_models: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "cut.png").write_bytes(saved(noise(), "PNG")[:-2000])
    made = encoder(seeing_models("qwen2_vl"), media_dir=tmp_path)
    (found,) = made.encode([Illustrated([ASKED, ANSWERED], images("cut.png"))])
    assert isinstance(found, list) and made.images
    with pytest.raises(NpukitError, match=r"rows.jsonl, line 3 .*cut.png is damaged"):
        made.images.pixels(found[0].at("rows.jsonl, line 3").images)


def test_an_image_that_has_changed_since_is_refused(seeing_models: Callable[[str], Path], tmp_path: Path) -> None:
    noise().save(tmp_path / "a.png")
    made: Images | None = encoder(seeing_models("qwen2_vl"), media_dir=tmp_path).images
    assert made
    image = made.measure(MediaItem("image", "a.png"))
    noise(300, 200).save(tmp_path / "a.png")
    with pytest.raises(NpukitError, match="no longer has the size"):
        made.pixels([image])


def test_the_cache_has_names_and_no_pixels(
    seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from npukit.llm.data.prepare import prepare

    monkeypatch.setenv("NPUKIT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "rows.jsonl"
    lines = [{"messages": [ASKED, ANSWERED], "images": ["c.png"]}, {"messages": [{**ASKED, "content": "?"}, ANSWERED]}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = encoder(seeing_models("qwen2_vl"), media_dir=pictures)
    data = DataOptions.model_validate({"train": [str(file)], "media_dir": pictures, "packing": False})
    for _ in range(2):  # made, then from the cache
        rows = prepare(data, named("sft"), made.tokenizer, 0, images=made.images).train
        found = [rows[number]["images"][0] for number in range(2)]
        assert [Path(each.files[0]).name for each in found[0]] == ["c.png"] and not found[1]
        assert found[0][0].place == f"{file}, line 1"
    assert sum(each.stat().st_size for each in (tmp_path / "cache").rglob("*") if each.is_file()) < 8_000


def test_a_preview_shows_where_pictures_go(
    seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path
) -> None:
    from npukit.studio.preview import look

    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": [ASKED, ANSWERED], "images": ["b.png"]}))
    wanted = {"model": str(seeing_models("qwen2_vl")), "data": str(file), "folder": str(pictures)}
    (row,) = look({**wanted, "template": "", "task": "", "tokens": ""}, 512, 0)["rows"]
    assert "user\n<|vision_start|>[b.png: 4 tokens]<|vision_end|>Who?" in "".join(
        each["text"] for each in row["pieces"]
    )
