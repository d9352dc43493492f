"""Checks early whether a hub can be reached. Its own library would retry for half a minute before it fails."""

from __future__ import annotations

import os
import socket
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Literal

from npukit.errors import NpukitError

Hub = Literal["huggingface", "modelscope"]
Kind = Literal["model", "dataset"]
WAIT = 4.0  # seconds to wait for a connection
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
OTHER_HUB: dict[Hub, str] = {
    "huggingface": "ModelScope (USE_MODELSCOPE_HUB=1)",
    "modelscope": "the Hugging Face Hub (USE_MODELSCOPE_HUB=0)",
}


def check_hub(kind: Kind, name: str, hub: Hub) -> None:
    """Raise NpukitError if the hub cannot be reached and its cache does not have this either.

    Without a connection, the hub's libraries are set to use the cache only.

    >>> check_hub("model", "Qwen/Qwen2-0.5B", "huggingface")
    """
    if any(os.environ.get(variable) for variable in OFFLINE) or urllib.request.getproxies():
        return  # the user forbids connections, or a proxy makes them
    address = urllib.parse.urlsplit(_endpoint(hub))
    if _answers(address):
        return
    if not _is_cached(kind, name, hub):
        raise NpukitError(
            f"There is no {name} on this machine, and {address.hostname} cannot be reached to download it: give the "
            f"path of a downloaded copy, use a mirror (HF_ENDPOINT=https://…) or {OTHER_HUB[hub]}, or set HTTPS_PROXY."
        )
    os.environ.update(dict.fromkeys(OFFLINE, "1"))
    if constants := sys.modules.get("huggingface_hub.constants"):  # it has read the variable already
        constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


def _endpoint(hub: Hub) -> str:
    if hub == "modelscope":
        return f"https://{os.environ.get('MODELSCOPE_DOMAIN') or 'www.modelscope.cn'}"
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _answers(address: urllib.parse.SplitResult) -> bool:
    port = address.port or {"http": 80}.get(address.scheme, 443)
    try:
        socket.create_connection((address.hostname or "", port), WAIT).close()
    except OSError:
        return False
    return True


def _is_cached(kind: Kind, name: str, hub: Hub) -> bool:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if hub == "modelscope":
        cache = Path(os.environ.get("MODELSCOPE_CACHE") or home / "modelscope" / "hub")
        return any((cache / folder / name).is_dir() for folder in ("", f"{kind}s"))
    hugging_face = Path(os.environ.get("HF_HOME") or home / "huggingface")
    downloads = Path(os.environ.get("HF_HUB_CACHE") or hugging_face / "hub")
    prepared = Path(os.environ.get("HF_DATASETS_CACHE") or hugging_face / "datasets")
    return any(
        folder.is_dir()
        for folder in (
            downloads / f"{kind}s--{name.replace('/', '--')}" / "snapshots",
            prepared / name.replace("/", "___").lower(),
        )
    )
