"""Stands in for invisible-watermark: pictures stay as they are."""

from typing import Any


class WatermarkEncoder:
    def set_watermark(self, *_: Any) -> None:
        pass

    def encode(self, image: Any, _: str) -> Any:
        return image
