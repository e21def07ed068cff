"""Who may read a wheel through its page, and who may act.

To read and to act need the token: a directory of a wheel is closed to other users of this machine, and a port is not.
An open page may be read by everybody on this machine, and listens only to it. The token travels in a header
(`Authorization: Bearer ...`), never in a cookie, so a page of another site cannot make a browser send it.

Two checks protect a browser on this machine against the pages of other sites. The name that the browser asked for
(`Host`) must be one of ours: a foreign name that was made to point here (DNS rebinding) is refused. A request that a
foreign page sent (`Origin`, `Sec-Fetch-Site`) is refused too.
Invariant: nothing acts without a token, and no token is compared in a time that depends on it.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from filewheel.errors import BadArgument

TOKEN_CHARS_MIN = 16
"""A shorter token could be guessed."""
TOKEN_CHARS_MAX = 1024
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_WILDCARDS = ("0.0.0.0", "::", "")


@dataclass(frozen=True)
class RefusedRequest:
    """Why a request is refused, and what to try."""

    status: int
    kind: str
    message: str
    hint: str


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


class Access:
    """The rules of one page."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        token: str | None = None,
        names: Sequence[str] = (),
        is_open: bool = False,
        acts: bool = True,
    ) -> None:
        """Make the rules for a page that listens at `host`; `names` are others by which it is reached.

        With `is_open`, everybody on this machine may read. Without `acts`, or without a token, nobody acts. Raises
        BadArgument: an open page at an address that other machines reach; neither open nor with a token; a token that
        could be guessed.
        """
        if token is not None:
            _check_token(token)
        elif not is_open:
            raise BadArgument("a page needs a token", hint="give one; or `is_open=True`: each user here may read")
        if is_open and not is_loopback(host):
            raise BadArgument(
                f"{host} can be reached from other machines, and everybody there could read the wheel",
                hint="leave out `--open`, or listen at 127.0.0.1 behind a proxy that asks for a password",
            )
        self._acts = acts and token is not None
        self._token = None if token is None else token.encode()
        self._names = {name.lower() for name in (*_LOOPBACK_NAMES, *names)}
        if host not in _WILDCARDS:
            self._names.add(host.lower())
        self._any_address = host in _WILDCARDS
        self._is_open = is_open

    @property
    def may_act(self) -> bool:
        """Whether the page may act, for a request with the token."""
        return self._acts

    @property
    def reads_freely(self) -> bool:
        """Whether the wheel may be read without the token."""
        return self._is_open

    def has_token(self, headers: Mapping[str, str]) -> bool:
        """Return whether a request brings the token."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if self._token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), self._token)

    def refusal(self, method: str, headers: Mapping[str, str], *, is_shell: bool = False) -> RefusedRequest | None:
        """Return why a request is refused; None when it is allowed. `is_shell` is of the page without the wheel.

        `headers` have names in lower case.
        """
        refused = self._foreign(method, headers)
        if refused is not None:
            return refused
        if method not in ("GET", "HEAD"):
            if not self.may_act:
                return RefusedRequest(
                    403, "read-only", "this page is read-only", "start it with `filewheel serve --act`"
                )
            if not self.has_token(headers):
                return _no_token()
        elif not (is_shell or self._is_open or self.has_token(headers)):
            return _no_token()
        return None

    def _foreign(self, method: str, headers: Mapping[str, str]) -> RefusedRequest | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return RefusedRequest(
                421,
                "wrong-host",
                "this page does not answer to the name that was asked for",
                "open it at the address that it printed, or start it with `--host NAME`",
            )
        origin = headers.get("origin")
        is_same = origin is None or urlsplit(origin).netloc.lower() == host.lower()
        site = headers.get("sec-fetch-site", "same-origin")
        is_ours = site in ("same-origin", "none")  # "none" was typed, or is a bookmark
        is_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if not is_same or not (is_ours or is_link):
            return RefusedRequest(
                403,
                "wrong-origin",
                "the request comes from a page of another site",
                "use the page itself, or a client that sends no Origin",
            )
        return None

    def _is_ours(self, host: str) -> bool:
        name = _name_of(host)
        if name is None:
            return False
        return name in self._names or (self._any_address and _is_address(name))


def _no_token() -> RefusedRequest:
    return RefusedRequest(401, "token", "this needs the token", "the header `Authorization: Bearer TOKEN`")


def _name_of(host: str) -> str | None:
    """Return the name of a Host header without its port, in lower case; None if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        port_is_valid = parts.port is None or parts.port >= 0
    except ValueError:
        return None
    if parts.netloc != host or "@" in host or parts.path or not port_is_valid:
        return None
    return parts.hostname.rstrip(".") if parts.hostname else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _check_token(token: str) -> None:
    if not isinstance(token, str) or not TOKEN_CHARS_MIN <= len(token) <= TOKEN_CHARS_MAX:
        raise BadArgument(
            f"a token has {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters, so that nobody guesses it",
            hint="""`python3 -c 'import secrets; print(secrets.token_urlsafe(24))'` makes one""",
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise BadArgument("a token has only letters, digits and marks of ASCII, and no spaces")
