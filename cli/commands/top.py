"""`top`: the wheel on the terminal, as it turns; with keys to look closer and to act."""

from __future__ import annotations

import contextlib

import click

from filewheel.live.overview import overview_fields
from filewheel.live.wheel_view import WheelView

from ..failure import check_damage
from ..input.params import DURATION
from ..show.output import Output
from ..signals import Abort, Quit, Stop
from ..times import US_PER_S
from ..verb import verb


@verb(
    "top",
    """
    $ filewheel top --once
    $ filewheel top --json
    """,
)
@click.option("--once", is_flag=True, help="Print one picture, then exit.")
@click.option(
    "--interval", type=DURATION, default="1s", show_default=True, metavar="DUR", help="How often to look at least."
)
def command(out: Output, once: bool, interval: int) -> None:
    """Watch the wheel: what is pending, due next, runs, dies, and how late it is.

    Works with a keeper running and with none, over ssh, and without colour; takes no lock. Keys choose a list and a
    message in it, and cancel, fire now, revive or delete that, after a question. Ends with `q` or Ctrl-C. Piped, it
    prints one JSON object; --once prints one picture.
    """
    with WheelView(out.dir, force=out.force) as view:
        view.wheel()  # a missing wheel is an error, not a picture
        if out.wants_json:
            fields = overview_fields(view)
            out.record(fields)
            check_damage(0 if fields["stats"] is None else fields["stats"]["damaged"])
        elif once or not (out.can_redraw and out.stdin_is_terminal):
            from ..top.session import still

            still(out, view)
            check_damage(view.stats().value.damaged)
        else:
            from ..top.session import Session

            session = Session(out, view, max(0.1, interval / US_PER_S))
            with contextlib.suppress(Quit, Abort), Stop(), out.unheard():
                session.run()
