"""LLaVA 1.5: a CLIP tower that sees every image in one size, and a language model of any family."""

from npukit.llm.families.vision import TileVision

VISION = TileVision(marker="<image>", token="<image>", markers={"ms_swift": "<image>\n"})
