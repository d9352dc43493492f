"""Reject what CANN's kernels reject: torch_npu's message with CANN's reason in it."""

from __future__ import annotations

_TILING_FAILED = 561002


def require(condition: bool, api: str, reason: str) -> None:
    """Raise the error that torch_npu raises when `api` fails, unless the condition holds.

    >>> require(False, "aclnnScatterPaKvCache", "key and key_cache must have the same dtype.")
    Traceback (most recent call last):
    RuntimeError: call aclnnScatterPaKvCache failed, detail:EZ9999: key and key_cache must have the same dtype. ...
    """
    if not condition:
        raise RuntimeError(
            f"call {api} failed, detail:EZ9999: {reason} (simulated NPU, error code {_TILING_FAILED})\n"
            "[ERROR] ERR01100 OPS call acl api failed"
        )
