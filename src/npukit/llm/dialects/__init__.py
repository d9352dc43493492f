"""Configurations as other tools' users write them, translated."""

from __future__ import annotations


def translated_name(key: str) -> str | None:
    return None
