"""The thinker of Qwen3-Omni: Qwen3-VL-MoE that also hears, in chunks of a second. The talker is not supported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npukit.llm.families import qwen3_vl_moe
from npukit.llm.families.qwen2_5_omni_thinker import HEARING, StretchedAudio, stretches
from npukit.llm.families.sizes import Grid, ImageSize
from npukit.llm.families.video import VideoRule
from npukit.llm.families.vision import segments

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WINDOW = 50  # half a chunk, in frames


@dataclass(frozen=True)
class SecondsOfAudio(StretchedAudio):
    """Chunks are padded with silence, and several chunks attend to each other. A frame that the recording does not fill
    is left out.
    """

    def audio_size(self, processor: Any, samples: int) -> ImageSize:
        frames = samples // processor.hop_length
        if not frames:
            raise ValueError("is shorter than a token, which takes 10 milliseconds")
        return ImageSize(_tokens(frames), (1, 1, frames))

    def heard(self, processor: Any, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mel frames [frames, bins] of the recording without padding."""
        made: NDArray[np.float32] = processor(
            samples, sampling_rate=processor.sampling_rate, padding=False, truncation=False, return_tensors="np"
        )["input_features"][0].T
        return made[: self.audio_size(processor, len(samples)).grid[2]]

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        """Return the frames of each chunk, which features are tokens, and which tokens attend to each other."""
        import torch
        from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as own

        audio, frames = config.audio_config, [grid[2] for grid in grids]
        longest = 2 * audio.n_window
        lengths, frame_at = stretches(frames, longest, width=longest)
        tokens = own._get_feat_extract_output_lengths(lengths, audio.n_window)
        is_token = torch.arange(_tokens(longest))[None] < tokens[:, None]
        borders = own.get_audio_cu_seqlens(lengths, torch.tensor(frames), audio.n_window_infer, audio.n_window)
        return {
            "frame_at": frame_at,
            "feature_lens": torch.tensor(frames),
            "chunk_lengths": lengths,
            "valid_indices": is_token.flatten().nonzero().flatten(),
            **segments(borders),
        }


def _tokens(frames: int) -> int:
    """Return the number of tokens of a recording. The tower halves each chunk three times.

    >>> _tokens(137)
    18
    """
    whole, rest = divmod(frames, 2 * WINDOW)
    return 13 * whole + -(-rest // 8)


@dataclass(frozen=True)
class SteadyVideo(VideoRule):
    """The processor counts two seconds for every two frames, whatever the real time. Sound is ignored."""

    def interval(self, config: Any, seconds: float) -> float:
        return float(config.position_id_per_seconds * 2)


FAMILY = qwen3_vl_moe.FAMILY
VISION = replace(
    qwen3_vl_moe.VISION,
    tower=("model.visual", HEARING),
    projector=("model.visual.merger", "model.visual.merger_list", f"{HEARING}.proj1", f"{HEARING}.proj2"),
    video=SteadyVideo(),
    audio=SecondsOfAudio(marker="<|audio_start|><|audio_pad|><|audio_end|>", token="<|audio_pad|>"),
)
