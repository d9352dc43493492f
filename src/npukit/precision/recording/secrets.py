"""Environment variables that must not appear in files that people share."""

from __future__ import annotations

import re

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|_KEY\b|AUTH|PROXY|COOKIE", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable's name suggests that its value is a secret.

    >>> is_secret("HF_TOKEN"), is_secret("HCCL_DETERMINISTIC")
    (True, False)
    """
    return _SECRET.search(name) is not None
