"""`serve`: a web page of the wheel, live, for this machine; with a token it may act.

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
    $ filewheel serve --token
    """,
)
@click.option(
    "--listen", default="127.0.0.1:8642", metavar="HOST:PORT", show_default=True, help="Where; port 0 is a free one."
)
@click.option("--token", "make_token", is_flag=True, help=f"May act: a token from {_VARIABLE}, or a new one.")
@click.option(
    "--token-file", type=click.Path(dir_okay=False), metavar="FILE", help="May act: the token is in this file."
)
@click.option("--private", is_flag=True, help="To read needs the token too.")
@click.option("--host", "names", multiple=True, metavar="NAME", help="Another name of the page, behind a proxy.")
def command(
    out: Output, listen: str, make_token: bool, token_file: str | None, private: bool, names: tuple[str, ...]
) -> None:
    """Show the wheel as a web page: what waits, runs and fails, live.

    Read-only, and for this machine only, unless there is a token. The page needs it to cancel, reschedule, revive and
    delete; where other machines reach the page, to read needs it too. The link that is printed holds a token that was
    made up. Works with a keeper running and with none. Ends with Ctrl-C or SIGTERM. Needs `filewheel[web]`.
    """
    token, is_new = _token(make_token, token_file)
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
            with view, Server(view, listen, token=token, names=names, is_private=private) as server:
                stop.wakes(lambda: over.put(None))
                _tell(out, server.url, token, is_new=is_new)
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


def _token(make_token: bool, token_file: str | None) -> tuple[str | None, bool]:
    """Return the token, and whether it was made up."""
    if token_file is not None:
        return _read_token(Path(token_file)), False
    given = os.environ.get(_VARIABLE)
    if given:
        return given, False
    return (secrets.token_urlsafe(24), True) if make_token else (None, False)


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


def _tell(out: Output, url: str, token: str | None, *, is_new: bool) -> None:
    link = f"{url}#token={token}" if is_new else url
    if out.wants_json:
        out.record({"url": link, "acts": token is not None})
    else:
        out.write(link)
    out.flush()
    out.note(
        f"serving {out.dir}, {'which the page may change with the token' if token else 'read-only'}; Ctrl-C ends it"
    )


def _warn_if_missing(out: Output, view: WheelView) -> None:
    """Name what is wrong with the wheel now; the page says it too, and shows the wheel when it is there."""
    try:
        view.wheel()
    except FilewheelError as exc:
        out.warn(f"{exc}")
