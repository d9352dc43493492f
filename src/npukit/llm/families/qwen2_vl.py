"""Qwen2-VL: Qwen2 with images of any size, and videos. Tokens have positions in time, height and width."""

from npukit.llm.families.family import Family, optional_window
from npukit.llm.families.video import VideoRule
from npukit.llm.families.vision import BoxRule, GridVision

FAMILY = Family(fused_rotary=True, window=optional_window)
VISION = GridVision(
    marker="<|vision_start|><|image_pad|><|vision_end|>",
    token="<|image_pad|>",
    video=VideoRule(),
    boxes=BoxRule("<|object_ref_start|>{name}<|object_ref_end|>", "<|box_start|>{points}<|box_end|>"),
)
