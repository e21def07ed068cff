"""Reads a crontab: the jobs of it, what cannot be taken, and what means something else here.

A line is five fields or a name like @daily, and a command; the command is the body of a message, for `filewheel run --
sh`. Lines NAME=value set variables for the lines below them: CRON_TZ and TZ are the zone, others are exported by the
body. `%` is cron's: the first one starts the command's stdin, further ones are newlines there, `\\%` is a percent sign.
Invariant: a job has the same name in each reading of a file, wherever it stands and whenever it is due.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from filewheel import BadArgument
from filewheel.scheduling.cron import Zone, read_recurrence

from ..times import now_us, to_datetime

LINE_BYTES_MAX = 64 << 10
NAME_CHARS_MAX = 100
_VARIABLE = re.compile(r"""\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*|"[^"=]*"|'[^'=]*')\s*=\s*(?P<value>.*?)\s*""")
_NAME = re.compile(r"#\s*name:\s*(\S.*?)\s*")
_FIELDS = 5
_NO_COMMAND = re.compile(r"[-|&;<>#)%]|\d+[<>]")
"""What follows the name of a program, and begins no command."""
_SYSTEM = re.compile(r"/etc/(crontab|cron\.d/[^/]*)")
"""Files whose lines name a user, as crontab(5) says."""
_HELP = "five fields and a command: 30 3 * * * backup.sh"


@dataclass(frozen=True)
class CronJob:
    """A job of a crontab."""

    line: int
    name: str
    when: str
    tz: str
    body: bytes
    text: str


@dataclass(frozen=True)
class BadCronLine:
    """A line that cannot be taken, why, and what to do."""

    line: int
    text: str
    why: str
    hint: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text!r}: {self.why}" + (f"; try: {self.hint}" if self.hint else "")


def is_system_crontab(path: str) -> bool:
    """Return whether cron reads a user in each line of this file."""
    return _SYSTEM.fullmatch(os.path.realpath(path)) is not None


@dataclass
class Crontab:
    """What a crontab says."""

    jobs: list[CronJob] = field(default_factory=list)
    problems: list[BadCronLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What means something else here."""
    verbs: frozenset[str] = frozenset()
    """Names that no schedule may have."""
    has_users: bool = False
    """Each line names a user before its command."""
    _tz: str = ""
    _given: str = ""
    _next_name: str = ""
    _exports: dict[str, str] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def read(self, lines: Iterable[tuple[int, bytes | None]], tz: str) -> Crontab:
        """Read all lines; `tz` is the zone of those without one of the file's own, "" if that must not be."""
        self._tz = tz
        for number, raw in lines:
            text = "" if raw is None else raw.decode("utf-8", "surrogateescape").strip()
            try:
                if raw is None or "\0" in text:
                    raise BadArgument("the line is too long, or has a zero byte", hint="a script in a file of its own")
                self._line(number, text)
            except BadArgument as exc:
                self._next_name = ""
                self.problems.append(BadCronLine(number, text[:120], exc.what, exc.hint or ""))
        return self

    def _line(self, number: int, text: str) -> None:
        named = _NAME.fullmatch(text)
        if named is not None:
            self._next_name = named[1]
        elif text and not text.startswith("#"):
            variable = _VARIABLE.fullmatch(text)
            if variable is not None:
                self._set(variable["name"].strip("\"'"), _unquoted(variable["value"]))
            else:
                self._job(number, text)
                self._next_name = ""

    def _set(self, name: str, value: str) -> None:
        """Note a variable for the lines below."""
        if name in ("CRON_TZ", "TZ"):
            self._tz = Zone(value.lstrip(":")).name
        if name == "SHELL":
            self.notes.append(f"SHELL={value}: jobs run in the command of `run`: filewheel run -- {value}")
        elif name == "MAILTO" and value:
            self.notes.append("MAILTO: no mail is sent; what failed is kept: filewheel dead list")
        elif name not in ("CRON_TZ", "MAILTO"):
            if name == "HOME":
                self.notes.append(f"HOME={value} is exported; jobs run in the directory of `filewheel run`")
            self._exports[name] = value

    def _job(self, number: int, text: str) -> None:
        if text.startswith("@"):
            when, _, command = text.partition(" ") if "\t" not in text.split(" ")[0] else text.partition("\t")
        else:
            parts = text.split(None, _FIELDS)
            when, command = " ".join(parts[:_FIELDS]), parts[_FIELDS] if len(parts) > _FIELDS else ""
        command = command.strip()
        if when.lower() == "@reboot":
            raise BadArgument(
                "a wheel does not know when the machine starts",
                hint="a systemd unit, or `filewheel enqueue --in 0` in one that runs at boot",
            )
        if "~" in when:
            raise BadArgument("a random time (~) is not known", hint="a fixed time, and --jitter")
        tz = self._tz or ("UTC" if when.startswith("@hourly") and _is_whole_hours_off() else "")
        read_recurrence(when, tz or "UTC")
        if not command:
            raise BadArgument("there is no command", hint=_HELP)
        if not tz:
            raise BadArgument("a crontab is in local time, and its zone is not said", hint=f"--tz {machine_zone()}")
        self._check_user(command)
        self.jobs.append(CronJob(number, self._named(command), when, tz, self._body(command), text))

    def _named(self, command: str) -> str:
        """Return the name of a job: that of the comment above it, or one that follows from its command."""
        name = self._next_name
        if not name:
            try:
                word = os.path.basename(shlex.split(command, comments=True)[0])
            except (ValueError, IndexError):
                word = "job"
            slug = re.sub(r"[^A-Za-z0-9._-]", "", word)[:NAME_CHARS_MAX] or "job"
            name = f"{slug}-{hashlib.sha256(command.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"
            count = self._names[name] = self._names.get(name, 0) + 1
            return name if count == 1 else f"{name}-{count}"
        if name in self.verbs:
            raise BadArgument(f"{name!r} is a verb of `filewheel schedule`, and cannot be a name", hint="another name")
        if name in self._names:
            raise BadArgument(f"two jobs of this file are named {name!r}", hint="# name: another")
        self._names[name] = 1
        return name

    def _body(self, command: str) -> bytes:
        """Return the script that a shell runs."""
        exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self._exports.items())
        parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", command)]
        script = parts[0]
        if len(parts) > 1:
            data = "\n".join(parts[1:]).removesuffix("\n")
            end = "END"
            while end in data.split("\n"):
                end += "_"
            script = f"{{ {parts[0].strip()}\n}} <<'{end}'\n{data}\n{end}"
        return f"{exports}{script}".encode("utf-8", "surrogateescape")

    def _check_user(self, command: str) -> None:
        """Raise BadArgument for the user field of a system crontab: it would be run as a command."""
        word, *rest = command.split(None, 1)
        is_user = bool(rest) and _NO_COMMAND.match(rest[0]) is None and _is_user(word)
        if self.has_users or (is_user and shutil.which(word, path=self._exports.get("PATH")) is None):
            raise BadArgument(
                f"{word!r} is a user, and no program: this is a line of a system crontab",
                hint="without the user; jobs run as the user of `filewheel run`, and a program is named by its path",
            )


@lru_cache
def _is_user(word: str) -> bool:
    try:
        pwd.getpwnam(word)
    except (KeyError, ValueError):
        return word == "root"
    return True


def _unquoted(value: str) -> str:
    quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1] if quoted else value


def _is_whole_hours_off() -> bool:
    """Whether the full hours of this machine are those of UTC."""
    offset = to_datetime(now_us()).astimezone().utcoffset()
    return offset is None or not offset.total_seconds() % 3600


def machine_zone() -> str:
    """Return the name of this machine's zone, or an example."""
    named = os.environ.get("TZ", "").lstrip(":") or os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    try:
        return Zone(named).name if named else "Europe/Berlin"
    except BadArgument:
        return "Europe/Berlin"
