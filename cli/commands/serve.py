"""`serve`: a web page of the wheel, live, for who has the token; it may act where that was asked for.

The token comes from a file, from the environment, or is made up: never from the command line, where `ps` shows it.
Invariant: the first signal ends the streams and the server; the wheel is never locked.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from queue import Empty, SimpleQueue

import click

from filewheel import FilewheelError
from filewheel.live.wheel_view import WheelView

from ..failure import INTERRUPTED, Failure
from ..firing import leave_at_once
from ..show.output import Output
from ..signals import Abort, Quit, Stop
from ..verb import verb

_VARIABLE = "FILEWHEEL_TOKEN"
_FILE_BYTES_MAX = 4096
_LOOK_S = 0.5


@verb(
    "serve",
    """
    $ filewheel serve
    $ filewheel serve --act
    """,
)
@click.option(
    "--listen", default="127.0.0.1:8642", metavar="HOST:PORT", show_default=True, help="Where; port 0 is a free one."
)
@click.option("--act", "acts", is_flag=True, help="The page may cancel, reschedule, revive, delete and pause.")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help=f"The token is in this file.  [default: {_VARIABLE}, or a new one]",
)
@click.option("--open", "is_open", is_flag=True, help="All users of this machine may read, without the token.")
@click.option("--host", "names", multiple=True, metavar="NAME", help="Another name of the page, behind a proxy.")
def command(
    out: Output, listen: str, acts: bool, token_file: str | None, is_open: bool, names: tuple[str, ...]
) -> None:
    """Show the wheel as a web page: what waits, runs and fails, live.

    The link that is printed holds the token, unless you gave one: to read the page needs it, since a port is open to
    every user of this machine. Read-only without --act. Works with a keeper running and with none. Ends with Ctrl-C or
    SIGTERM. Needs `filewheel[web]`.
    """
    token, is_new = _token(token_file)
    try:
        from filewheel.live.web import Server
    except ModuleNotFoundError as exc:
        raise Failure(
            "failed", f"the page needs {exc.name}, which is not installed", hint="`pip install 'filewheel[web]'`"
        ) from None
    over = SimpleQueue[None]()  # an Event could be set by a signal while it is looked at, and wait for itself
    with contextlib.suppress(Quit), Stop() as stop:
        view = WheelView(out.dir, force=out.force)
        try:
            with view, Server(view, listen, token=token, names=names, is_open=is_open, acts=acts) as server:
                stop.wakes(lambda: over.put(None))
                _tell(out, server.url, token if is_new else None, acts=acts, is_open=is_open)
                _warn_if_missing(out, view)
                while not _comes(over):
                    pass
        except Abort:
            leave_at_once(INTERRUPTED)


def _comes(over: SimpleQueue[None]) -> bool:
    """Wait in pieces: a signal that another thread gets, or that comes just before the wait, does not end it."""
    try:
        over.get(timeout=_LOOK_S)
    except Empty:
        return False
    return True


def _token(token_file: str | None) -> tuple[str, bool]:
    """Return the token, and whether it was made up."""
    if token_file is not None:
        return _read_token(Path(token_file)), False
    given = os.environ.get(_VARIABLE)
    if given:
        return given, False
    return secrets.token_urlsafe(24), True


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_FILE_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise Failure("usage", f"{path}: the token cannot be read: {exc}", hint="a file with one line") from None
    if mode & 0o077:
        raise Failure("usage", f"{path}: others can read the token", hint=f"`chmod 600 {path}`")
    return text


def _tell(out: Output, url: str, new: str | None, *, acts: bool, is_open: bool) -> None:
    link = url if new is None else f"{url}#token={new}"
    if out.wants_json:
        out.record({"url": link, "acts": acts, "open": is_open})
    else:
        out.write(link)
    out.flush()
    out.note(
        f"serving {out.dir} to {'all users of this machine' if is_open else 'who has the token'}, "
        f"{'who may change it with the token' if acts else 'read-only'}; Ctrl-C ends it"
    )


def _warn_if_missing(out: Output, view: WheelView) -> None:
    """Name what is wrong with the wheel now; the page says it too, and shows the wheel when it is there."""
    try:
        view.wheel()
    except FilewheelError as exc:
        out.warn(f"{exc}")
