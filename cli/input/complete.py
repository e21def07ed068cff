"""What a shell may complete from the wheel itself: topics, ids, keys, names of schedules; and time zones.

A press of Tab must neither wait nor print: each look ends after a quarter of a second with what it has found, and an
error, a missing wheel or damage is no completion. So of a wheel with millions of messages it offers what fires next.
Invariant: nothing here raises, writes, or says anything.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import click
from click.shell_completion import CompletionItem

from filewheel import BadArgument, Filter, Message, MessageId, Wheel, schedule_of
from filewheel.tools.dump import iso

from ..show.output import Output

_LOOK_S = 0.25
_OFFERED_MAX = 100
_ID_CHARS = 26
_FEW = 256

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _quietly(find: Callable[[Wheel, str], Iterable[CompletionItem]]) -> Completer:
    """Return the completion that looks into the wheel of the command line."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        out = ctx.find_object(Output) or Output()
        logger, silent = logging.getLogger("filewheel"), logging.NullHandler()
        logger.addHandler(silent)  # or Python prints the warnings itself
        try:
            with out.unheard(), Wheel(out.dir, force=out.force) as wheel:
                return list(islice(find(wheel, incomplete), _OFFERED_MAX))
        except Exception:  # also of a defect: a Tab says nothing
            return []
        finally:
            logger.removeHandler(silent)

    return complete


def _soon(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages for a quarter of a second, and a few on a machine that is too busy for that."""
    end_s = time.monotonic() + _LOOK_S
    for number, message in enumerate(messages, 1):
        yield message
        if number % _FEW == 0 and time.monotonic() > end_s:
            return


def _walk(wheel: Wheel) -> Iterator[Message]:
    with wheel.snapshot() as snapshot:
        yield from _soon(snapshot.messages())


def _distinct(words: Iterable[str | None], incomplete: str) -> Iterator[CompletionItem]:
    seen: set[str] = set()
    for word in words:
        if word and word not in seen and word.startswith(incomplete) and word.isprintable():
            seen.add(word)
            yield CompletionItem(word)


def _topics(wheel: Wheel, incomplete: str) -> Iterator[CompletionItem]:
    return _distinct((message.topic for message in _walk(wheel)), incomplete)


def _keys(wheel: Wheel, incomplete: str) -> Iterator[CompletionItem]:
    return _distinct((message.key for message in _walk(wheel)), incomplete)


def _schedules(wheel: Wheel, incomplete: str) -> Iterator[CompletionItem]:
    definitions = (schedule_of(message) for message in _walk(wheel))
    return _distinct((None if found is None else found.name for found in definitions), incomplete)


def _ids(wheel: Wheel, incomplete: str) -> Iterator[CompletionItem]:
    """Yield the ids with this beginning, also those of dead letters: a beginning is a range of ids."""
    text = incomplete.upper()
    with contextlib.suppress(BadArgument), wheel.snapshot() as snapshot:
        low = MessageId.parse(text.ljust(_ID_CHARS, "0"))
        high = MessageId.parse(text.ljust(_ID_CHARS, "Z") if text else "7".ljust(_ID_CHARS, "Z"))
        for message in _soon(snapshot.messages(Filter(low, high))):
            help_ = " ".join(filter(None, [iso(message.due_us)[:19], message.topic]))
            yield CompletionItem(str(message.id), help="".join(c for c in help_ if c.isprintable()))


complete_topic = _quietly(_topics)
complete_key = _quietly(_keys)
complete_schedule = _quietly(_schedules)
complete_id = _quietly(_ids)


def complete_zone(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a time zone, in any case of letters."""
    from zoneinfo import available_timezones

    wanted = incomplete.lower()
    try:
        return [CompletionItem(zone) for zone in sorted(available_timezones()) if zone.lower().startswith(wanted)]
    except OSError:
        return []
