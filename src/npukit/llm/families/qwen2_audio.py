"""Qwen2-Audio: Qwen2 with a Whisper tower, which makes 25 tokens a second of up to 30 seconds of sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npukit.llm.families import qwen2_vl
from npukit.llm.families.sizes import Grid, ImageSize, TowerSizes
from npukit.llm.families.vision import Vision
from npukit.llm.medium import Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class AudioTower(Vision):
    """`grid` is the number of mel frames. The tower always takes 30 seconds, but does not attend to the silence at the
    end.
    """

    kind: Kind = "audio"
    tower: tuple[str, ...] = ("model.audio_tower",)

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        audio = config["audio_config"]
        sizes = {"hidden": "d_model", "intermediate": "encoder_ffn_dim", "heads": "encoder_attention_heads"}
        given = {ours: int(audio[theirs]) for ours, theirs in sizes.items()}
        return TowerSizes(layers=int(audio["encoder_layers"]), patch=128, patches_per_token=4.0, **given)

    def audio_size(self, processor: Any, samples: int) -> ImageSize:
        """Return the number of tokens. Samples after 30 seconds are left out, as the processor does."""
        frames = -(-min(samples, processor.n_samples) // processor.hop_length)
        tokens = ((frames - 1) // 2 - 1) // 2 + 1
        if tokens < 1:
            raise ValueError("is shorter than a token, which takes 40 milliseconds")
        return ImageSize(tokens, (1, 1, frames))

    def heard(self, processor: Any, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the mel frames of 30 seconds."""
        rate = processor.sampling_rate
        made: NDArray[np.float32] = processor(samples, sampling_rate=rate, padding="max_length", return_tensors="np")[
            "input_features"
        ]
        return made

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        """Return which of the tower's positions have sound, and which of its features are tokens."""
        import torch

        positions = config.audio_config.max_source_positions
        frames = torch.tensor([grid[2] for grid in grids])
        heard = (frames - 1) // 2 + 1
        tokens = (heard - 2) // 2 + 1
        mask = torch.arange(positions)[None] < heard[:, None]
        kept = torch.arange(positions // 2)[None] < tokens[:, None]
        return {"attention_mask": mask[:, None, None], "feature_at": kept.flatten().nonzero().flatten()}

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        length = pixel_values.shape[-1] // 2
        mask = tower["attention_mask"].expand(-1, -1, length, -1)
        heard = body.audio_tower(pixel_values, attention_mask=mask).last_hidden_state
        return body.multi_modal_projector(heard).flatten(0, 1)[tower["feature_at"]], ()


FAMILY = qwen2_vl.FAMILY
VISION = AudioTower(
    marker="Audio {number}: <|audio_bos|><|AUDIO|><|audio_eos|>\n",
    token="<|AUDIO|>",
    markers={"llama_factory": "<|audio_bos|><|AUDIO|><|audio_eos|>"},
)
