"""How a server is reached and what it lets clients use up."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens, who may use it and how much of it.

    >>> ServerOptions(port=8000, names=("qwen",), api_keys=("secret",))
    """

    host: str = "127.0.0.1"
    port: int = 8000
    names: tuple[str, ...] = ("model",)  # what clients call the model; the first one is in the answers
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    no_key: bool = False  # serve without a key on an address that others can reach
    cors: tuple[str, ...] = ()  # the origins of web pages that may use it
    tls_key: Path | None = None
    tls_certificate: Path | None = None
    change_adapters: bool = False  # let clients load and remove adapters
    max_body: int = 16 * 2**20  # bytes of a request
    max_waiting: int = 512  # answers that run or wait; a client beyond them is told to come back later
    max_logprobs: int = 20  # of the likeliest tokens at each place
    timeout: float = 600.0  # seconds for an answer; one that takes longer is cut there
    drain: float = 30.0  # seconds that running answers have after SIGTERM

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def check(self) -> None:
        """Refuse what nobody can mean."""
        if not self.is_local and not self.api_keys and not self.no_key:
            raise NpukitError(
                f"Anyone who can reach {self.host} could use this server: set a key with --api-key, "
                "or say --no-key if that is what you want."
            )
        if any(not key or not key.isascii() for key in self.api_keys):
            raise NpukitError("An API key must be printable ASCII text.")
        if (self.tls_key is None) != (self.tls_certificate is None):
            raise NpukitError("TLS needs both --ssl-keyfile and --ssl-certfile.")


@dataclass(frozen=True)
class ServeOptions:
    """All that a server process is started with: a model, how it is run, and how it is served.

    >>> ServeOptions("models/qwen2", adapters={"support": "runs/support"}, server=ServerOptions(port=9000))
    """

    model: str
    adapters: dict[str, str] = field(default_factory=dict)  # those that clients choose by name
    merged: tuple[str, ...] = ()  # those that belong to the model
    dtype: str = "auto"
    template: str | None = None  # of chats; None is the tokenizer's own
    system: str | None = None  # for conversations that have no system message
    enable_thinking: bool | None = None  # None: as the chat template has it
    trust_remote_code: bool = False
    allow_pickles: bool = False
    longest: int | None = None  # tokens of a prompt with its answer
    rows: int = 256  # answers at a time
    lookup: int = 0  # tokens that are guessed from the prompt
    memory: float = 0.9
    eager: bool = False  # no graphs
    sampling: dict[str, Any] = field(default_factory=dict)  # for requests that do not say
    server: ServerOptions = field(default_factory=ServerOptions)
