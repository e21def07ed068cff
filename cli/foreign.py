"""Words of other tools for what filewheel does, so that a wrong verb is answered with the right one.

A word that becomes a verb is no longer asked for here.
Invariant: each answer is a command (a test checks it).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

_LIST = "inspect list"
_WORDS: dict[tuple[str, ...], str] = {
    (_LIST,): "list ls ll jobs queue peek atq tasks messages pending",
    ("inspect",): "info status overview ps",
    ("inspect ID",): "show get view cat describe",
    ("dead list",): "failed dlq deadletters errors",
    ("enqueue",): "add push put send create new publish submit produce insert at later",
    ("cancel",): "delete del rm remove atrm unqueue discard drop ack purge clear",
    ("reschedule",): "move mv delay snooze postpone revive retry requeue release update edit",
    ("run", "work"): "start fire consume worker daemon keeper listen beat exec",
    ("init",): "make mkdir setup initialize",
    ("stats",): "count wc size",
    ("verify",): "check fsck doctor scrub",
    ("repair",): "fix heal mend recover",
    ("dump",): "export save",
    ("load",): "import restore",
    ("replicate",): "sync mirror follow",
    ("promote",): "failover takeover",
    ("schedule", "when"): "cron every",
    ("schedule load FILE",): "crontab",
    ("when",): "next",
    ("--help",): "help usage",
    ("--version",): "version",
}
FOREIGN = {word: commands for commands, words in _WORDS.items() for word in words.split()}
"""Word → the commands that it may mean."""


def meant(word: str, verbs: Sequence[str], inner: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the commands that an unknown verb may mean: by its sense, else by its spelling.

    `inner` has the sub-verbs.
    """
    known = FOREIGN.get(word.lower())
    if known is not None:
        return list(known)
    named: dict[str, list[str]] = {verb: [verb] for verb in verbs}
    for verb, names in inner.items():
        for name in names:
            named.setdefault(name, []).append(f"{verb} {name}")
    close = difflib.get_close_matches(word.lower(), named, cutoff=0.6)
    return list(dict.fromkeys(command for name in close for command in named[name]))
