"""Videos of rows: which frames are taken, what they become, their positions, and training beside transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.llm.images.test_losses import config, logged, losses_of
from tests.llm.images.test_media import ANSWERED, encoder, of
from tests.seeing import VIDEO_FAMILIES, write_clips

from npukit.errors import NpukitError
from npukit.llm.data.encode import Encoder
from npukit.llm.data.layout import lay_out
from npukit.llm.data.row import BadRow, Illustrated, Layout
from npukit.llm.families import visions
from npukit.llm.families.video import VideoLimits
from npukit.llm.finetune.train import train
from npukit.llm.images import video
from npukit.llm.images.files import BadImage
from npukit.llm.images.video import VideoHeader, read_frames, read_header
from npukit.llm.medium import MediaItem

ASKED = {"role": "user", "content": "<video>What happens?"}
PATCH = {"qwen2_vl": 14, "qwen2_5_vl": 14}


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    write_clips(folder)
    return folder


def make_file(
    file: Path, frames: int = 30, fps: int = 10, codec: str = "mpeg4", size: tuple[int, int] = (96, 64)
) -> Path:
    """A video file whose frames get brighter."""
    av = pytest.importorskip("av")
    with av.open(str(file), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(frames):
            pixels = np.full((size[1], size[0], 3), number * 255 // frames, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return file


HAPPENS = {"type": "text", "text": "What happens?"}


@pytest.mark.parametrize(
    ("content", "videos"),
    [
        ("<video>What happens?", ["walk"]),
        ("<video>What happens?", "walk"),
        ([{"type": "video_url", "video_url": {"url": "walk"}}, HAPPENS], None),
        ([{"type": "video", "video": "walk"}, HAPPENS], None),
        ([{"type": "video"}, HAPPENS], ["walk"]),
    ],
)
def test_rows_have_videos_as_they_have_images(content: Any, videos: Any) -> None:
    row = {"messages": [{"role": "user", "content": content}, ANSWERED], "videos": videos}
    found = lay_out(row, Layout("messages"))
    assert found == Illustrated([ASKED, ANSWERED], (MediaItem("video", "walk"),))


def test_each_tag_takes_the_next_of_its_kind() -> None:
    from npukit.llm.data.media import spread

    turns = [{"role": "user", "content": "<video> <image><video>"}]
    media = [MediaItem("image", "a"), MediaItem("video", "b"), MediaItem("video", "c")]
    assert [medium.source for medium in spread(turns, media, "npukit")[1]] == ["b", "a", "c"]
    with pytest.raises(BadRow, match="<video> 2 times"):
        spread(turns, media[:2], "npukit")


@pytest.mark.parametrize("total", [1, 4, 7, 31, 100, 977])
@pytest.mark.parametrize("fps", [7.5, 25.0, 60.0])
def test_frames_and_sizes_of_qwen3_are_those_of_its_processor(total: int, fps: float) -> None:
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor, smart_resize

    rule = visions()["qwen3_vl"].video
    assert rule
    limits = VideoLimits(2.0, 4, 48, 128 * 32 * 32, 768 * 32 * 32)
    found = rule.frames(total, fps, limits)
    processor: Any = SimpleNamespace(fps=2.0, min_frames=4, max_frames=48)
    metadata: Any = SimpleNamespace(total_num_frames=total, fps=fps)
    wanted = Qwen3VLVideoProcessor.sample_frames(processor, metadata).tolist()
    assert found == wanted
    for height, width in ((20, 50), (360, 640), (1080, 1920), (301, 77)):
        frames = max(2, len(wanted))
        most = max(min(768 * 1024, limits.max_pixels // frames), int(limits.min_pixels * 1.05)) * frames
        size = smart_resize(frames, height, width, 2, 32, limits.min_pixels, most)
        assert rule.resized(len(wanted), height, width, 32, limits) == size


def test_frames_of_a_file_by_tool(seeing_models: Callable[[str], Path]) -> None:
    """10 s of 30 frames a second: every half second, by npukit from each start, by the tools to the very end."""
    header = VideoHeader(640, 360, 300, 30.0, 10.0)
    limits = {"npukit": {}, "llama_factory": {"template": "qwen2_vl"}, "ms_swift": {"template": "qwen2_vl"}}
    found = {}
    for tool, more in limits.items():
        images = encoder(seeing_models("qwen2_5_vl"), tokens=tool, video_max_frames=12, **more).images
        assert images and images._sampling
        found[tool] = images._sampling(header)
    assert found["npukit"].frames == [number * 300 // 12 for number in range(12)]
    assert found["llama_factory"].frames == np.linspace(0, 299, 12).astype(int).tolist()
    assert found["ms_swift"].frames == np.linspace(0, 299, 12).round().astype(int).tolist()
    assert found["llama_factory"].sizes[0] == (341, 192)  # 256 x 256 pixels, before the processor
    assert found["ms_swift"].sizes == [(644, 364)]
    assert {each.size.interval for each in found.values()} == {4 * 2 / 1.2}  # tokens a second, for two frames


def original_positions(ids: list[int], grids: list[tuple[int, int, int]], token: int, interval: float) -> Any:
    """The rule of the models' own code, as transformers had it before 5.3: text goes on after the highest position."""
    blocks: list[Any] = []
    done, left = 0, list(grids)
    while token in ids[done:]:
        begin = ids.index(token, done)
        start = int(blocks[-1].max()) + 1 if blocks else 0
        blocks.append(torch.arange(begin - done).expand(3, -1) + start)
        start += begin - done
        time, high, wide = left.pop(0)
        steps = (torch.arange(time)[:, None].expand(-1, high * wide) * interval).long().flatten()
        rows = torch.arange(high).view(1, -1, 1).expand(time, -1, wide).flatten()
        columns = torch.arange(wide).view(1, 1, -1).expand(time, high, -1).flatten()
        blocks.append(torch.stack([steps, rows, columns]) + start)
        done = begin + time * high * wide
    start = int(blocks[-1].max()) + 1
    blocks.append(torch.arange(len(ids) - done).expand(3, -1) + start)
    return torch.cat(blocks, dim=1)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_positions_are_those_of_the_models_own_code(
    family: str, seeing_models: Callable[[str], Path], clips: Path
) -> None:
    """transformers from 5.3 on lets text begin inside of the video, where that is longer in time than in space."""
    made = encoder(seeing_models(family), media_dir=clips, video_fps=0.5)
    turns = [{"role": "user", "content": "a <video>b"}, ANSWERED]
    (row,) = made.encode([Illustrated(turns, (MediaItem("video", "run"),))])
    assert isinstance(row, list) and made.images
    size, ids = row[0].images[0].size, of(row)
    token = made.tokenizer.convert_tokens_to_ids("<|video_pad|>")
    interval = {"qwen2_5_vl": 4.0 * 4}.get(family, 1.0)
    steps, high, wide = size.merged
    grids = [(1, high, wide)] * steps if family == "qwen3_vl" else [(steps, high, wide)]
    found = made.images.positions(np.array(ids), row[0].images)
    assert found is not None and steps == 3
    assert np.array_equal(found, original_positions(ids, grids, token, interval).numpy())
    if family == "qwen2_5_vl":  # the trap: text after the video has positions of its own
        assert found.max(0)[-1] > 2 * interval


def test_seconds_are_written_before_frames(seeing_models: Callable[[str], Path], clips: Path) -> None:
    """As Qwen3-VL's processor wrote them from the beginning: a mean of two frames, in the place of the whole marker."""
    made = encoder(seeing_models("qwen3_vl"), media_dir=clips)
    (row,) = made.encode([Illustrated([ASKED, ANSWERED], (MediaItem("video", "walk"),))])
    assert isinstance(row, list)
    step = row[0].images[0].size.tokens // 3
    pads = f"<|vision_start|>{'<|video_pad|>' * step}<|vision_end|>"
    text = f"<0.2 seconds>{pads}<1.2 seconds>{pads}<2.0 seconds>{pads}What happens?"
    assert text in made.tokenizer.decode(of(row))


def pixels_of(made: Encoder, folder: Path, size: tuple[int, int], patch: int) -> Any:
    """By the patches of transformers' video processor, of frames that were resized as images are."""
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor

    assert made.images
    processor, frames = made.images.processor, []
    for file in sorted(folder.iterdir()):
        image = np.asarray(Image.open(file).resize(size)).transpose(2, 0, 1).astype(np.float32)
        image = processor.normalize(processor.rescale(image, 1 / 255), processor.image_mean, processor.image_std)
        frames.append(torch.from_numpy(np.asarray(image)))
    nothing: Any = None
    return Qwen3VLVideoProcessor.patchify(nothing, torch.stack(frames)[None], patch, 2, 2)


@pytest.mark.parametrize("family", VIDEO_FAMILIES[:3])
@pytest.mark.parametrize("clip", ["walk", "run"])
def test_pixels_are_those_of_the_video_processor(
    family: str, clip: str, seeing_models: Callable[[str], Path], clips: Path
) -> None:
    made = encoder(seeing_models(family), media_dir=clips)
    assert made.images
    measured = made.images.measure(MediaItem("video", clip))
    patch = PATCH.get(family, 16)
    _, high, wide = measured.size.grid
    flat, *grid = pixels_of(made, clips / clip, (wide * patch, high * patch), patch)
    pixels, grids = made.images.pixels([measured])
    assert grids == [tuple(grid)]
    assert np.allclose(pixels, flat[0].numpy(), atol=1e-6)


def video_rows(folder: Path) -> Path:
    """Conversations with videos, pictures, both and none."""
    file = folder / "videos.jsonl"
    rows: list[dict[str, Any]] = [
        {"content": "<video>What happens?", "videos": ["walk"]},
        {"content": "First <video>, then <image>, then <video>", "videos": ["run", "walk"], "images": ["000.png"]},
        {"content": "nothing to see"},
        {"content": "frames <video>", "videos": [["run/000.png", "run/002.png", "run/004.png"]]},
    ]
    lines = []
    for number, row in enumerate(rows):
        turns = [
            {"role": "user", "content": row.pop("content")},
            {"role": "assistant", "content": "cat " * (number + 1)},
        ]
        lines.append(json.dumps({"messages": turns, **row}) + "\n")
    file.write_text("".join(lines))
    return file


def of_transformers(folder: Path, made: Encoder, rows: Path) -> list[tuple[float, int]]:
    """Losses of each row by transformers' own forward, which gets images and videos apart, in their own order."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder)
    return losses_of(model, batches_with_videos(made, rows))


def batches_with_videos(made: Encoder, rows: Path) -> Iterator[dict[str, Any]]:
    """Each row for transformers' own forward."""
    assert made.images
    for line in rows.read_text().splitlines():
        row = lay_out(json.loads(line), Layout("messages"))
        (encoded,) = made.encode([row])
        assert isinstance(encoded, list)
        tokens = encoded[0].tokens
        ids, images = torch.tensor([of(encoded)]), encoded[0].images
        labels = torch.from_numpy(np.where(tokens >= 0, tokens, -100)).long()[None]
        batch: dict[str, Any] = {"input_ids": ids, "labels": labels}
        for kind, pixels, grid in (
            ("image", "pixel_values", "image_grid_thw"),
            ("video", "pixel_values_videos", "video_grid_thw"),
        ):
            if own := [image for image in images if image.kind == kind]:
                read, grids = made.images.pixels(own)
                batch |= {pixels: torch.from_numpy(read), grid: torch.tensor(grids)}
        batch["position_ids"] = torch.from_numpy(made.images.positions(ids[0].numpy(), images))[:, None]
        yield batch


@pytest.mark.parametrize(
    ("family", "packing"),
    [(family, packing) for family in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl") for packing in (False, True)]
    + [("qwen3_5", False)],
)
def test_losses_are_those_of_transformers_row_by_row(
    family: str, packing: bool, seeing_models: Callable[[str], Path], clips: Path, tmp_path: Path
) -> None:
    rows, folder = video_rows(clips), seeing_models(family)
    wanted = config(folder, rows, tmp_path, batch_size=64 if packing else 12, data={"packing": packing, "cache": False})
    train(wanted)
    sums = of_transformers(folder, encoder(folder, media_dir=clips, cutoff=512), rows)
    mean = sum(loss for loss, _ in sums) / sum(count for _, count in sums)
    assert logged(tmp_path)[0] == pytest.approx(mean, abs=1e-5)


def test_a_file_is_decoded_as_it_says(tmp_path: Path) -> None:
    file = make_file(tmp_path / "clip.mp4")
    assert read_header(file, "clip") == VideoHeader(96, 64, 30, 10.0, 3.0) == read_header(file.read_bytes(), "clip")
    frames = list(read_frames(file, [0, 10, 29], "clip"))
    assert [frame.size for frame in frames] == [(96, 64)] * 3
    light = [float(np.asarray(frame).mean()) for frame in frames]
    assert light == pytest.approx([0, 85, 246], abs=8)


def test_frames_that_no_header_counts_are_counted(tmp_path: Path) -> None:
    file = make_file(tmp_path / "clip.mkv")
    assert read_header(file, "clip").total == 30


def test_a_row_names_a_file(seeing_models: Callable[[str], Path], tmp_path: Path) -> None:
    make_file(tmp_path / "clip.mp4")
    made = encoder(seeing_models("qwen2_5_vl"), media_dir=tmp_path)
    (row,) = made.encode([Illustrated([ASKED, ANSWERED], (MediaItem("video", "clip.mp4"),))])
    assert isinstance(row, list) and made.images
    pixels, grids = made.images.pixels(row[0].images)
    assert grids[0][0] == 3 and len(pixels) == np.prod(grids[0])
    assert row[0].images[0].size.interval == 4.0  # a second for two frames


@pytest.mark.parametrize("case", ["missing", "text", "cut", "empty", "audio", "bytes", "long", "playlist", "sizes"])
def test_what_is_no_video_gets_one_sentence(
    case: str, seeing_models: Callable[[str], Path], clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    source: Any = "clip.mp4"
    file, kind = tmp_path / "clip.mp4", "video"
    if case == "text":
        file.write_text("no video")
    elif case == "cut":
        whole = make_file(file).read_bytes()
        file.write_bytes(whole[: len(whole) // 3])
    elif case == "empty":
        file.mkdir()
    elif case in ("bytes", "long"):
        make_file(file)
        monkeypatch.setattr(video, "MAX_BYTES" if case == "bytes" else "MAX_FPS", 0)
    elif case == "playlist":
        file.write_text(f"#EXTM3U\n#EXTINF:1,\n{make_file(tmp_path / 'other.mp4')}\n")
    elif case == "sizes":
        source = [str(clips / "walk" / "000.png"), str(clips / "run" / "000.png")]
    elif case == "audio":
        kind, source = "audio", "clip.wav"
    made = encoder(seeing_models("qwen2_5_vl"), media_dir=None if case == "sizes" else tmp_path)
    media: Any = (MediaItem(kind, source),)
    (found,) = made.encode([Illustrated([{**ASKED, "content": f"<{kind}>?"}, ANSWERED], media)])
    assert isinstance(found, BadRow) and "\n" not in str(found)
    assert case in ("sizes", "audio") or "clip.mp4" in str(found)


def test_a_file_that_ends_early_names_row_and_file(seeing_models: Callable[[str], Path], tmp_path: Path) -> None:
    """Its header is whole, its frames are not."""
    file = make_file(tmp_path / "clip.avi", frames=60)
    content = file.read_bytes()
    made = encoder(seeing_models("qwen2_5_vl"), media_dir=tmp_path)
    (found,) = made.encode([Illustrated([ASKED, ANSWERED], (MediaItem("video", "clip.avi"),))])
    assert isinstance(found, list) and made.images
    broken = bytearray(content)
    start, end = len(content) // 4, len(content) * 9 // 10
    broken[start:end] = bytes(end - start)
    file.write_bytes(bytes(broken))
    with pytest.raises(NpukitError, match=r"line 3 .*clip.avi"):
        made.images.pixels(found[0].at("rows.jsonl, line 3").images)


def test_without_a_decoder_frames_still_work(
    seeing_models: Callable[[str], Path], clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    made = encoder(seeing_models("qwen2_vl"), media_dir=clips).images
    assert made and made.measure(MediaItem("video", "walk")).size.tokens
    (tmp_path / "clip.mp4").write_bytes(b"0")
    with pytest.raises(BadImage, match="pip install av"):
        made.measure(MediaItem("video", str(tmp_path / "clip.mp4")))


def test_a_preview_shows_where_videos_go(seeing_models: Callable[[str], Path], clips: Path, tmp_path: Path) -> None:
    from npukit.studio.preview import look

    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": [ASKED, ANSWERED], "videos": [["walk/000.png", "walk/001.png"]]}))
    wanted = {"model": str(seeing_models("qwen2_vl")), "data": str(file), "folder": str(clips)}
    (row,) = look({**wanted, "template": "", "task": "", "tokens": ""}, 512, 0)["rows"]
    assert "<|vision_start|>[000.png: 6 tokens]<|vision_end|>What" in "".join(each["text"] for each in row["pieces"])
