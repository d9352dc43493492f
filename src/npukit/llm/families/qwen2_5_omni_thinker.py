"""The thinker of Qwen2.5-Omni: Qwen2.5-VL that also hears, in chunks of two seconds. The talker is not supported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npukit.llm.families import qwen2_vl
from npukit.llm.families.qwen2_audio import AudioTower
from npukit.llm.families.sizes import Grid, ImageSize
from npukit.llm.families.video import VideoRule
from npukit.llm.families.vision import GridVision, segments

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

HEARING = "model.audio_tower"


@dataclass(frozen=True)
class StretchedAudio(AudioTower):
    """The tower takes the mel frames of all recordings in one row and attends within chunks of them."""

    tower: tuple[str, ...] = (HEARING,)

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        from torch.nn.functional import pad

        inputs = {name: value for name, value in tower.items() if name != "frame_at"}
        padded = pad(pixel_values, (0, 0, 0, 1))[tower["frame_at"]].transpose(1, 2)  # silence at the end
        return body.audio_tower(padded_feature=padded, **inputs, return_dict=True).last_hidden_state, ()


def stretches(frames: Sequence[int], longest: int, width: int | None = None) -> tuple[Any, Any]:
    """Return the lengths of the recordings' chunks, and the indices of each chunk's frames, padded to `width`."""
    import torch

    lengths = torch.tensor([min(longest, left) for count in frames for left in range(count, 0, -longest)])
    begins = lengths.cumsum(0) - lengths
    at = torch.arange(width or int(lengths.max()))[None]
    return lengths, torch.where(at < lengths[:, None], begins[:, None] + at, sum(frames))


@dataclass(frozen=True)
class OmniAudio(StretchedAudio):
    """Each chunk attends to itself, and every two features become one."""

    def audio_size(self, processor: Any, samples: int) -> ImageSize:
        if processor.padding_side == "left":  # a frame that the recording does not fill is left out
            samples -= samples % processor.hop_length
        return super().audio_size(processor, samples)

    def heard(self, processor: Any, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mel frames [frames, bins], computed from the recording and the silence around it."""
        import numpy as np

        hop, samples = processor.hop_length, samples[: processor.n_samples]
        count, silence = self.audio_size(processor, len(samples)).grid[2], 3 * hop + -len(samples) % hop
        is_left = processor.padding_side == "left"
        filled = np.pad(samples, (silence, 0) if is_left else (0, silence))
        made: NDArray[np.float32] = processor(
            filled, sampling_rate=processor.sampling_rate, padding=False, truncation=False, return_tensors="np"
        )["input_features"][0].T
        return made[-count:] if is_left else made[:count]

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        """Return the frames of each chunk, and what attention and pooling need to know about them."""
        import torch
        from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as own

        frames = [grid[2] for grid in grids]
        lengths, frame_at = stretches(frames, 2 * config.audio_config.n_window)
        return {
            "frame_at": frame_at,
            "feature_lens": torch.tensor(frames),
            "chunk_lengths": lengths,
            "valid_indices": own.get_valid_indices(lengths),
            "pool_indices": own.get_pool_indices(torch.tensor(frames)),
            **segments(own.get_audio_cu_seqlens(lengths)),
        }


@dataclass(frozen=True)
class OmniVideo(VideoRule):
    """Positions in time increase with the seconds between frames. The sound of a video is ignored."""

    def interval(self, config: Any, seconds: float) -> float:
        return float(config.position_id_per_seconds * seconds)


@dataclass(frozen=True)
class OmniVision(GridVision):
    """The towers and projectors for both images and sound."""

    def is_unused(self, config: Any, name: str) -> bool:
        return name.startswith(f"{HEARING}.audio_bos_eos_token.") or super().is_unused(config, name)


FAMILY = qwen2_vl.FAMILY
VISION = OmniVision(
    marker="<|vision_bos|><|IMAGE|><|vision_eos|>",
    token="<|IMAGE|>",
    tower=("model.visual", HEARING),
    projector=("model.visual.merger", f"{HEARING}.proj"),
    video=OmniVideo(marker="<|vision_bos|><|VIDEO|><|vision_eos|>", token="<|VIDEO|>", swift_seconds=1.0),
    audio=OmniAudio(marker="<|audio_bos|><|AUDIO|><|audio_eos|>", token="<|AUDIO|>"),
)
