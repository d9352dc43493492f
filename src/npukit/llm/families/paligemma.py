"""PaliGemma: an image of fixed size before a question, whose tokens all attend to each other. It does not chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npukit.llm.families.vision import TileVision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class PaliGemmaVision(TileVision):
    """All tokens before the first answer are one group."""

    def tile_tokens(self, config: Any) -> int:
        return int(config.text_config.num_image_tokens)

    def groups(self, config: Any, is_image: NDArray[np.bool_], prompt: int) -> NDArray[np.int64]:
        import numpy as np

        return np.where(np.arange(len(is_image)) < prompt, 0, -1)

    def token_types(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        import numpy as np

        return (groups < 0).astype(np.int64)


VISION = PaliGemmaVision(
    marker="<image>", token="<image>", markers={"ms_swift": "<image><bos>"}, packs=False, prefix=True
)
