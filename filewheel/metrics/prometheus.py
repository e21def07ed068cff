"""The text that Prometheus scrapes (format 0.0.4): families of samples are written to it, and read back.

The metrics of a process, the gauges of a wheel and the published file are all families, so that each is named,
explained and escaped in one way. Only the published file is read back, and only filewheel writes it.
Invariant: `parse(render(families))` returns the families, whatever text a label holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from filewheel.errors import Damaged

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

Labels = tuple[tuple[str, str], ...]

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"')
_SAMPLE = re.compile(rf"({_NAME.pattern})(?:\{{((?:{_LABEL.pattern}(?:,(?!\}})|(?=\}})))*)\}})? (\S+)")
_ESCAPED = re.compile(r"\\(.)")


class Sample(NamedTuple):
    """One number, with the labels that tell it from others of its family."""

    name: str
    labels: Labels
    value: float


class Family(NamedTuple):
    """What belongs together under one name: its kind, what it means, and its samples in order."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


def is_name(text: str) -> bool:
    """Tell whether a metric can have this name."""
    return _NAME.fullmatch(text) is not None


def gauge(name: str, help_: str, value: float) -> Family:
    """Return a family that is one number."""
    return Family(name, GAUGE, help_, [Sample(name, (), value)])


def with_labels(families: Iterable[Family], labels: Mapping[str, str]) -> list[Family]:
    """Return the families with these labels before those that each sample has."""
    first = tuple(labels.items())
    return [f._replace(samples=[s._replace(labels=first + s.labels) for s in f.samples]) for f in families]


def render(families: Iterable[Family]) -> str:
    """Return the text. A family without samples is left out."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_clean(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [f"{s.name}{_labels_text(s.labels)} {number(s.value)}" for s in family.samples]
    return "\n".join([*lines, ""])


def number(value: float) -> str:
    """Return a number as the format writes it."""
    if isinstance(value, int):
        return str(int(value))
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _clean(text: str) -> str:
    # Half of a surrogate pair cannot be encoded; it is written out, as it is where people read it.
    return text.encode("utf-8", "backslashreplace").decode().replace("\\", "\\\\").replace("\n", "\\n")


def _labels_text(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = [f'{name}="{_quoted(value)}"' for name, value in labels]
    return "{" + ",".join(pairs) + "}"


def _quoted(value: str) -> str:
    return _clean(value).replace('"', '\\"')


def parse(text: str, place: str) -> list[Family]:
    """Read the families that `render` wrote, perhaps in another version; `place` names the text in errors.

    Raises Damaged at the first line that `render` does not write.
    """
    families: list[Family] = []
    # Not splitlines: a label may hold characters that it takes for the end of a line.
    for n, line in enumerate(text.split("\n"), 1):
        try:
            if line.startswith("# HELP "):
                name, _, help_ = line.removeprefix("# HELP ").partition(" ")
                families.append(Family(name, "untyped", _unescaped(help_), []))
            elif line.startswith("# TYPE "):
                families[-1] = families[-1]._replace(kind=line.rpartition(" ")[2])
            elif line:
                families[-1].samples.append(_sample(line))
        except (ValueError, IndexError):
            raise Damaged(
                f"line {n} is not a metric", path=place, hint="remove the file; it is written again"
            ) from None
    return families


def _sample(line: str) -> Sample:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        raise ValueError(line)
    labels = tuple((name, _unescaped(value)) for name, value in _LABEL.findall(match[2] or ""))
    return Sample(match[1], labels, int(match[5]) if match[5].isdecimal() else float(match[5]))


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], text)
