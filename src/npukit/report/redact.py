"""Remove private information from files that are sent to others: secrets, paths, user and host names."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REMOVED = "<removed>"
# Names of variables, settings and options whose value is a secret; a tokenizer's words such as max_tokens are not.
SECRET_NAME = (
    r"[\w.-]*(?:token(?!s|iz)|(?:api|private|access|secret|ssh)[_-]?key|_key(?![a-z])|secret|passw(?:or)?d|passphrase"
    r"|credential|auth(?!or)|cookie)[\w-]*"
)
SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|pypi-|npm_|dckr_pat_)(?=[\w-]*\d)[\w-]{12,}"
    r"|\b(?:AKIA|ASIA|LTAI|AIza)[A-Za-z0-9_-]{12,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"  # a JSON web token
    r"|(?<=://)[^/\s:@]+(?::[^/\s@]*)?(?=@)"  # user and password in a URL
    r"|(?<=Bearer )\S+|(?<=Basic )\S{8,}",
    re.DOTALL,
)
ASSIGNED = re.compile(
    rf"""(?i)((?<![\w.-])(?:{SECRET_NAME}["']?\s*[=:]\s*|--{SECRET_NAME}\s+))("[^"]*"|'[^']*'|[^\s,;&"']+)"""
)
IS_SECRET_NAME = re.compile(f"(?i){SECRET_NAME}")
PRIVATE_ADDRESS = re.compile(
    r"\b(?:10(?:\.\d{1,3}){3}|192\.168(?:\.\d{1,3}){2}|172\.(?:1[6-9]|2\d|3[01])(?:\.\d{1,3}){2}|(?!127\.)\d{1,3}(?:\.\d{1,3}){3}(?=:\d))\b"
)
HOMES = re.compile(r"(?:/home|/Users|/export/home)/[^/\s:'\",;()<>\[\]]+|/root(?![\w-])")
PATHS = re.compile(r"(?<![\w.:/])(?:~|/(?!/))[^\s:'\",;()<>\[\]=]*/[^\s:'\",;()<>\[\]=]+")
SYSTEM = ("/usr/", "/opt/", "/etc/", "/dev/", "/proc/", "/sys/", "/lib", "/bin/", "/var/log/")  # on every machine
SHORTEST = 4  # a name this long is removed anywhere in a text; shorter ones may be parts of words


def redacted(value: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Plain data without secrets and without the names of this user and host, with paths shortened.

    >>> redacted({"log": "HF_TOKEN=hf_0123456789abcdefghij in /home/ann/project/train.py"})
    {'log': 'HF_TOKEN=<removed> in …/project/train.py'}
    """
    return _Redactor(os.environ if environ is None else environ).data(value)


class _Redactor:
    def __init__(self, environ: Mapping[str, str]) -> None:
        own = {text for name, text in environ.items() if IS_SECRET_NAME.fullmatch(name) and len(text) >= SHORTEST}
        self.own_secrets = sorted(own, key=len, reverse=True)
        self.home = environ.get("HOME", "").rstrip("/")
        self.names = [
            (re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"), to) for name, to in _names(environ)
        ]

    def data(self, value: Any, name: str = "") -> Any:
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.data(item, str(key)) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item, name) for item in value]
        if isinstance(value, Path):
            return self.text(str(value))
        if not isinstance(value, str):
            return value
        return REMOVED if value and IS_SECRET_NAME.fullmatch(name) else self.text(value)

    def text(self, text: str) -> str:
        for secret in self.own_secrets:
            text = text.replace(secret, REMOVED)
        text = ASSIGNED.sub(rf"\g<1>{REMOVED}", SECRETS.sub(REMOVED, text))
        if len(self.home) > 1:
            text = re.sub(rf"{re.escape(self.home)}(?![\w-])", "~", text)
        text = PATHS.sub(_shortened, HOMES.sub("~", text))
        for pattern, to in self.names:
            text = pattern.sub(to, text)
        return PRIVATE_ADDRESS.sub("<address>", text)


def _names(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = ""
    whole = {socket.gethostname(), environ.get("HOSTNAME", "")}
    users = {user, environ.get("USER", ""), environ.get("LOGNAME", ""), environ.get("SUDO_USER", "")}
    hosts = whole | {host.partition(".")[0] for host in whole}
    pairs = [(name, "<user>") for name in users - {"root"}] + [(name, "<host>") for name in hosts - {"localhost"}]
    return sorted((pair for pair in pairs if len(pair[0]) >= SHORTEST), key=lambda pair: -len(pair[0]))


def _shortened(match: re.Match[str]) -> str:
    """The last two parts of a path, which identify the file. Paths that every system has stay complete."""
    path = match[0]
    if path.startswith(SYSTEM):
        return path
    parts = [part for part in path.split("/") if part not in ("", "~")]
    return path if path.startswith("~") and len(parts) < 2 else "…/" + "/".join(parts[-2:])
