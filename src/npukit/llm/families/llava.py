"""LLaVA 1.5: a CLIP tower for images of one size, with a language model of any family."""

from npukit.llm.families.vision import TileVision

VISION = TileVision(marker="<image>", token="<image>", markers={"ms_swift": "<image>\n"})
