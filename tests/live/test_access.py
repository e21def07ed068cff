"""Who may read and act: tokens, names of the host, pages of other sites."""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import Any

import pytest

from filewheel import BadArgument
from filewheel.live.web import access as module
from filewheel.live.web.access import Access, is_loopback

TOKEN = "correct-horse-battery"
HERE = {"host": "127.0.0.1:8642"}
BEARER = {"authorization": f"Bearer {TOKEN}"}


def kind(access: Access, method: str = "GET", is_shell: bool = False, **headers: str) -> str | None:
    """Return the kind of a refusal; None when it is allowed."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = access.refusal(method, {**HERE, **named}, is_shell=is_shell)
    return refusal and refusal.kind


def test_of_an_open_page_everybody_here_reads_and_nobody_acts_without_a_token() -> None:
    access = Access(is_open=True)
    assert kind(access) is None
    assert kind(access, "POST") == "read-only"
    assert kind(access, "POST", authorization="Bearer ") == "read-only"
    assert kind(access, "POST", authorization="Bearer None") == "read-only"
    assert not access.has_token({"authorization": "Bearer None"})


def test_of_an_open_page_with_a_token_everybody_here_reads_and_who_has_it_acts() -> None:
    access = Access(token=TOKEN, is_open=True)
    assert kind(access) is None
    assert kind(access, "POST") == "token"
    assert kind(access, "POST", **BEARER) is None


def test_a_page_that_does_not_act_refuses_who_has_the_token() -> None:
    access = Access(token=TOKEN, acts=False)
    assert kind(access, "POST", **BEARER) == "read-only"
    assert kind(access, **BEARER) is None


@pytest.mark.parametrize(
    "wrong", [f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "", TOKEN, f"Basic {TOKEN}", "Bearer \xff\udcff",
              f"Bearer {TOKEN.upper()}"]
)  # fmt: skip
def test_a_wrong_token_is_none(wrong: str) -> None:
    assert kind(Access(token=TOKEN), "POST", authorization=wrong) == "token"


def test_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return hmac.compare_digest(a, b)

    class Watched:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(module, "hmac", Watched)
    assert Access(token=TOKEN).has_token(BEARER)
    assert not Access(token=TOKEN).has_token({"authorization": "Bearer nope"})
    assert compared == [(TOKEN.encode(), TOKEN.encode()), (b"nope", TOKEN.encode())]
    source = Path(module.__file__).read_text()
    assert not re.search(r"[!=]= self\._token|self\._token [!=]= (?!None)", source)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.7", "jobs.example"])
def test_a_page_at_an_address_that_others_reach_is_never_open(host: str) -> None:
    with pytest.raises(BadArgument, match="other machines"):
        Access(host, token=TOKEN, is_open=True)
    with pytest.raises(BadArgument, match="token"):
        Access(host)
    access = Access(host, token=TOKEN)
    named = {"host": "192.0.2.7:8642" if host in ("0.0.0.0", "::", "") else f"{host}:8642"}
    assert kind(access, **named) == "token"
    assert kind(access, **named, **BEARER) is None
    assert kind(access, is_shell=True, **named) is None, "the page itself asks for the token"


def test_a_page_needs_the_token_to_be_read() -> None:
    with pytest.raises(BadArgument, match="token"):
        Access()
    access = Access(token=TOKEN)
    assert kind(access) == "token"
    assert kind(access, **BEARER) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_addresses_of_this_machine_only_are_known(host: str) -> None:
    assert is_loopback(host)
    Access(host, is_open=True)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8642", "localhost:9000", "LOCALHOST", "[::1]:8642", "localhost.", "localhost:"]
)
def test_this_machine_has_these_names_with_any_port(host: str) -> None:
    assert kind(Access(is_open=True), host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8642", "127.0.0.1.evil.example", "localhost.evil.example", "", "127.0.0.1@evil",
        "evil@127.0.0.1", "192.0.2.7", "127.0.0.1:99999999", "127.0.0.1/x", "[::1", "127.0.0.1:80, evil",
        "localhost evil",
        "0.0.0.0", "127.0.0.2", "127.0.0.1#evil", "127.0.0.1?evil",
    ],
)  # fmt: skip
def test_a_foreign_name_that_points_here_is_refused_though_the_token_is_right(host: str) -> None:
    assert kind(Access(token=TOKEN), host=host, **BEARER) == "wrong-host"
    assert kind(Access(token=TOKEN), "POST", host=host, **BEARER) == "wrong-host"
    assert kind(Access(is_open=True), is_open=True, host=host) == "wrong-host", "the page itself too"


def test_everywhere_an_address_is_ours_and_a_name_only_if_it_was_given() -> None:
    access = Access("0.0.0.0", token=TOKEN, names=["Jobs.Example"])
    assert kind(access, host="192.0.2.7:8642", **BEARER) is None
    assert kind(access, host="[2001:db8::7]:8642", **BEARER) is None
    assert kind(access, host="jobs.example", **BEARER) is None
    assert kind(access, host="evil.example", **BEARER) == "wrong-host"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "null"},
        {"origin": ""},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
    ],
)
def test_a_page_of_another_site_can_neither_read_nor_act(headers: dict[str, str]) -> None:
    for access in (Access(is_open=True), Access(token=TOKEN)):
        assert kind(access, **headers, **BEARER) == "wrong-origin"
        assert kind(access, "POST", **headers, **BEARER) == "wrong-origin"


def test_a_form_of_another_site_cannot_act() -> None:
    sent = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "origin": "http://evil.example"}
    assert kind(Access(token=TOKEN), "POST", **sent, **BEARER) == "wrong-origin"
    del sent["origin"]
    assert kind(Access(token=TOKEN), "POST", **sent, **BEARER) == "wrong-origin"


def test_the_page_itself_a_typed_address_and_a_link_from_elsewhere_work() -> None:
    access = Access(token=TOKEN, is_open=True)
    own = {"origin": "http://127.0.0.1:8642", "sec_fetch_site": "same-origin", "sec_fetch_mode": "cors"}
    assert kind(access, **own) is None
    assert kind(access, "POST", **own, **BEARER) is None
    assert kind(access, sec_fetch_site="none", sec_fetch_mode="navigate") is None
    assert kind(access, sec_fetch_site="cross-site", sec_fetch_mode="navigate") is None
    assert kind(access, "POST", **BEARER) is None, "a client that is no browser"


def test_behind_a_proxy_with_tls_the_origin_is_the_name_that_was_asked_for() -> None:
    access = Access(token=TOKEN, names=["jobs.example"])
    assert kind(access, "POST", host="jobs.example", origin="https://jobs.example", **BEARER) is None
    assert kind(access, "POST", host="jobs.example", origin="https://evil.example", **BEARER) == "wrong-origin"


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "x" * 1025, "with a space in it.", "ünïcode-token-long", "a\nb" * 9, 5]
)
def test_a_token_that_could_be_guessed_or_is_no_header_is_refused(token: Any) -> None:
    with pytest.raises(BadArgument):
        Access(token=token)
