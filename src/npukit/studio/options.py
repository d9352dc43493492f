"""How the studio is started."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npukit.llm.config.use import is_loopback
from npukit.studio.folders import Folders


@dataclass(frozen=True)
class StudioOptions:
    """Where the studio listens, what it may touch and who may use it.

    `verbs` describes the verbs that have a form, see `npukit.cli.studio`.
    """

    folders: Folders
    host: str = "127.0.0.1"
    port: int = 7860
    token: str = field(default="", repr=False)
    read_only: bool = False
    names: tuple[str, ...] = ()  # further names under which a browser may reach it, such as a proxy's
    verbs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach it."""
        return is_loopback(self.host)

    def allows(self, name: str) -> bool:
        """Whether a browser may call the server by this name; any other may be a DNS rebinding attack."""
        name = name.lower().strip("[]")
        if name in ("localhost", self.host.lower(), *(other.lower() for other in self.names)):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not self.is_local and name == socket.gethostname().lower()
        return address.is_loopback if self.is_local else True


def kept_token(folder: Path) -> str:
    """The token of a folder. It stays the same, so that open pages keep working after a restart."""
    file = folder / "token"
    try:
        kept = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        kept = ""
    if len(kept) < 32:
        kept = secrets.token_urlsafe(32)
        file.unlink(missing_ok=True)
        file.touch(mode=0o600)
        file.write_text(kept, encoding="ascii")
    return kept
