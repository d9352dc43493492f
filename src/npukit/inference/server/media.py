"""Images and videos that clients send: as data URIs, or as addresses on domains that the server was started with.

An address of a client could make the server ask machines that only it can reach. So the name is resolved once, every
address it has must be public, the connection goes to the address that was checked, redirects are not followed, and
size and time are limited while it is read. Files of this machine are never read.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import time
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from npukit.llm.images.files import DATA, BadImage, decoded, shortened
from npukit.llm.medium import MediaItem

SECONDS = 10.0  # for a download
PIECE = 1 << 16
PORTS = {"http": 80, "https": 443}


class Media:
    """Reads what requests name: at most `most` images or videos a request, of at most so many bytes.

    >>> Media(most=8, max_bytes=16 << 20, domains=["example.com"]).read(MediaItem("image", "data:image/png;…"))
    (b'\\x89PNG…', 'the image')
    """

    def __init__(self, most: int, max_bytes: int, domains: Sequence[str] = ()) -> None:
        self.most, self._max_bytes = most, max_bytes
        self._domains = {domain.lower().rstrip(".") for domain in domains}

    def read(self, medium: MediaItem) -> tuple[bytes | list[bytes], str]:
        """The content of an image or a video and its name for sentences; raises BadImage.

        A video may be JPEG frames: data:video/jpeg;base64, and one after the other with commas between them.
        """
        source = medium.source
        if not isinstance(source, str):
            raise BadImage(f"its {medium.kind}_url has no url")
        if match := DATA.match(source):
            content = source[match.end() :]
            if medium.kind == "video" and match[0].lower().startswith("data:video/jpeg;"):
                return [decoded(frame, self._max_bytes) for frame in content.split(",")], "the video"
            return decoded(content, self._max_bytes), f"the {medium.kind}"
        try:
            address = urlsplit(source)
            host, port = (address.hostname or "").rstrip("."), address.port
        except ValueError:
            raise BadImage(f"{shortened(source)} is not an address") from None
        if address.scheme not in PORTS:
            raise BadImage(f"{shortened(source)} is neither a data URI nor an address of http or https")
        if host not in self._domains:
            raise BadImage(
                f"media are not fetched from {shortened(host)}: send data URIs, or start the server with "
                f"--allowed-media-domains {shortened(host)}"
            )
        if address.username is not None or port not in (None, PORTS[address.scheme]):
            raise BadImage(f"{shortened(source)} contains a user name or a port, which is not allowed")
        return self._download(address, host), shortened(source)

    def _download(self, address: SplitResult, host: str) -> bytes:
        until = time.monotonic() + SECONDS
        connection = _connect(address.scheme, host)
        target = (address.path or "/") + (f"?{address.query}" if address.query else "")
        try:
            connection.request("GET", target, headers={"Accept": "*/*", "Accept-Encoding": "identity"})
            response = connection.getresponse()
            if response.status != 200:
                raise BadImage(f"{host} answers with status {response.status}; redirects are not followed")
            return self._body(response, connection, host, until)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise BadImage(f"{host} cannot be read ({type(error).__name__})") from None
        finally:
            connection.close()

    def _body(
        self, response: http.client.HTTPResponse, connection: http.client.HTTPConnection, host: str, until: float
    ) -> bytes:
        if (response.length or 0) > self._max_bytes:
            raise self._too_large(host)
        content = b""
        while piece := response.read1(PIECE):
            content += piece
            if len(content) > self._max_bytes:
                raise self._too_large(host)
            left = until - time.monotonic()
            if left <= 0:
                raise BadImage(f"{host} takes longer than {SECONDS:.0f} seconds")
            if connection.sock is not None:
                connection.sock.settimeout(left)
        return content

    def _too_large(self, host: str) -> BadImage:
        return BadImage(f"what {host} sends has more than {self._max_bytes >> 20} MiB")


def _connect(scheme: str, host: str) -> http.client.HTTPConnection:
    """A connection to an address of the host that everybody can reach; the certificate is that of its name."""
    try:
        infos = socket.getaddrinfo(host, PORTS[scheme], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise BadImage(f"{shortened(host)} cannot be resolved") from None
    addresses = [str(info[4][0]) for info in infos]
    if not addresses or not all(is_public(address) for address in addresses):
        raise BadImage(f"{shortened(host)} has an address that is not public")
    connection = http.client.HTTPConnection(host, PORTS[scheme], timeout=SECONDS)
    try:
        connection.sock = socket.create_connection((addresses[0], PORTS[scheme]), timeout=SECONDS)
        if scheme == "https":
            connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
    except OSError as error:
        connection.close()
        raise BadImage(f"{shortened(host)} cannot be reached ({type(error).__name__})") from None
    return connection


def is_public(address: str) -> bool:
    """Whether an address is one of the open internet, also if it is written as one of IPv6.

    >>> is_public("10.0.0.1"), is_public("::ffff:127.0.0.1"), is_public("64:ff9b::7f00:1"), is_public("1.1.1.1")
    (False, False, False, True)
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if any(ip in network for network in TRANSLATED):
            return False
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None,))[0]
        if inner is not None and not inner.is_global:
            return False
    return ip.is_global and not ip.is_multicast


# Addresses of IPv6 that a gateway turns into some of IPv4.
TRANSLATED = [ipaddress.ip_network(network) for network in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")]
