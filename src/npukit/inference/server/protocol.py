"""HTTP connections with limits before authentication: size, time and number of unfinished headers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 * 2**10  # bytes of a request line with its headers
HEAD_TIMEOUT = 10.0  # seconds from a connection, or the first byte of its next request, to the end of the headers
MAX_UNFINISHED = 512  # connections with incomplete headers; above it the oldest is closed
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which has no such limits."""

    unfinished: dict[LimitedProtocol, None] = {}  # noqa: RUF012 - of all connections, oldest first

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head = 0  # bytes of the incomplete headers
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first request."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._head_is_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless the headers are too large."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self in self.unfinished:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._refuse(TOO_LARGE)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self not in self.unfinished:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Count headers that arrive all at once."""
        self._head_is_done()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            self._refuse(TOO_LARGE)
            raise ValueError("the headers are too large")  # which ends the parser
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP, unless an answer has been sent."""
        if not self.transport.is_closing():
            super().send_400_response(msg)

    def _expect_head(self) -> None:
        self._head, self.unfinished[self] = 0, None
        self._timer = self.loop.call_later(HEAD_TIMEOUT, self._refuse, TOO_SLOW)
        if len(self.unfinished) > MAX_UNFINISHED:
            next(iter(self.unfinished))._refuse(TOO_SLOW)

    def _head_is_done(self) -> None:
        self.unfinished.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def _refuse(self, answer: bytes) -> None:
        self._head_is_done()
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()
