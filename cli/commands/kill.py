"""`kill`: end one attempt that runs: its process of the pool, its command, or its coroutine.

The keeper's process does it; no signal is sent from here.
"""

from __future__ import annotations

import contextlib
import shlex

import click

from filewheel import Damaged, Killed, MessageId, Wheel
from filewheel.message import SCHEDULE_KEY

from .. import times
from ..failure import Failure
from ..input.params import DURATION
from ..show.output import Output
from ..show.runs import ended_words, run_words
from ..show.text import short_time
from ..times import US_PER_S
from ..verb import verb

_THEN = {"cancel": "it is dropped", "retry": "its retry policy goes on", "bury": "it is a dead letter now"}


@verb(
    "kill",
    """
    $ filewheel inspect list --state running --ids | xargs -rn1 filewheel kill
    """,
)
@click.option("--key", metavar="KEY", help="The message that has this unique key.")
@click.option("--schedule", metavar="NAME", help="The occurrence of this schedule that runs.")
@click.option("--retry", is_flag=True, help="The attempt has failed: the retry policy decides.")
@click.option("--bury", is_flag=True, help="The message becomes a dead letter.")
@click.option(
    "--timeout", type=DURATION, default="10s", show_default=True, metavar="DUR", help="How long to wait for the end."
)
@click.argument("id_", required=False, metavar="[ID]")
def command(
    out: Output, key: str | None, schedule: str | None, retry: bool, bury: bool, timeout: int, id_: str | None
) -> None:
    """End a message's attempt that runs now, and drop the message.

    The keeper ends what it started itself: a process of its pool, a command of `run` with its child processes (SIGTERM,
    and SIGKILL after two seconds), a coroutine at its next await. A thread cannot be ended, nor what a program of your
    own does between a claim and its acknowledgement. A message that was cancelled is dropped in any case. A schedule
    goes on with its next occurrence. ID is the present or the first id. Prints the id when the outcome is written.

    \b
    Exit codes:
      4  it does not run: it ended by itself, or waits (cancel it)
     11  another kill of it, with another outcome, is at work
     15  it runs where nothing can end it
     16  it did not end in time; it may still
     20  no keeper runs
    """
    if (id_ is None) + (key is None) + (schedule is None) != 2:
        raise click.UsageError("give an id, --key or --schedule, and only one of them")
    if retry and bury:
        raise click.UsageError("give --retry or --bury, not both")
    then = "retry" if retry else "bury" if bury else "cancel"
    wanted = None if id_ is None else MessageId.parse(id_)
    if schedule is not None:
        key, what = SCHEDULE_KEY + schedule, f"the occurrence of {schedule!r}"
    else:
        what = str(wanted) if wanted is not None else f"the message with the key {key!r}"
    with out.wheel() as wheel:
        name = schedule or _schedule_of(wheel, wanted, key)
        if key is not None:
            wanted = _id_of(wheel, key)
        named = {"key": key} if wanted is None else {"id_": wanted}
        killed = wheel.kill(**named, then=then, timeout_s=timeout / US_PER_S)  # type: ignore[arg-type]
        if not killed:
            raise _failure(wheel, wanted, what, killed, name)
        goes_on = "" if name is None else _goes_on(wheel, name)
    if out.json:
        out.record({"id": None if wanted is None else str(wanted), "key": key, "outcome": killed.value, "then": then})
    else:
        out.write(schedule or str(wanted))
    after = "it had been cancelled, so it is dropped" if killed is Killed.CANCELLED else _THEN[then]
    out.note(f"{what} was killed; {after}{goes_on}")


def _id_of(wheel: Wheel, key: str) -> MessageId | None:
    """Return the id of the message with a key: of the one that runs, if there is one."""
    with contextlib.suppress(Damaged):  # a list that cannot be read hinders no kill
        for run in wheel.running():
            if run.key == key and run.begun_us is not None:
                return run.id
    message = wheel.get(key=key)
    return None if message is None else message.id


def _schedule_of(wheel: Wheel, id_: MessageId | None, key: str | None) -> str | None:
    """Return the name of the schedule that a running message is an occurrence of, if that is known."""
    runs = (run for run in wheel.running() if (id_ in (run.id, run.first_id) if id_ is not None else run.key == key))
    return next((run.schedule for run in runs), None)


def _goes_on(wheel: Wheel, name: str) -> str:
    """Return when the schedule of a killed occurrence fires next; "" when it is over."""
    found = wheel.schedules(name)
    if not found:
        return ""
    return f"; the schedule goes on, next {short_time(found[0].occurrence.due_us, times.now_us())}"


def _failure(wheel: Wheel, id_: MessageId | None, what: str, killed: Killed, schedule: str | None) -> Failure:
    """Return why nothing was killed."""
    stops = f"`filewheel cancel {id_ or '--key ...'}` stops it"
    if schedule is not None:  # a cancel would end the schedule
        stops = f"`filewheel pause --schedule {shlex.quote(schedule)}` holds it"
    if killed is Killed.NO_KEEPER:
        return Failure("no-keeper", f"no keeper runs on {wheel.path}, so nothing runs", hint="`filewheel cancel`")
    if killed is Killed.TIMED_OUT:
        return Failure(
            "timed-out", f"{what} has not ended in time; it may still, or the keeper does not answer",
            hint="`filewheel inspect list --state running` shows what runs",
        )  # fmt: skip
    if killed is Killed.WAITING:
        return Failure("not-found", f"{what} has not begun", hint=stops)
    if killed is Killed.OTHER:
        return Failure(
            "locked", f"another kill of {what} is at work, with another outcome: that one decides",
            hint=f"`filewheel history --limit 5` shows how {what} ended",
        )  # fmt: skip
    running = wheel.running()
    if killed in (Killed.THREAD, Killed.PROGRAM):
        run = None if id_ is None else running.find(id_)
        where = "" if run is None else f" ({run_words(run, times.now_us())})"
        return Failure(
            "unkillable",
            f"{what} runs in a {'thread' if killed is Killed.THREAD else 'program of its own'}{where}: nothing can end "
            "it from outside",
            hint="`filewheel cancel` keeps it from being tried again; only the end of its process ends it",
        )
    past = wheel.history(id=id_, limit=1) if id_ is not None else []
    if past:
        return Failure("not-found", f"{what} does not run: {ended_words(past[0], times.now_us())}")
    if id_ is not None and wheel.get(id_) is not None:
        return Failure("not-found", f"{what} does not run: it waits", hint=stops)
    return Failure("not-found", f"{what} does not run", hint="`filewheel inspect list --state running` shows what does")
