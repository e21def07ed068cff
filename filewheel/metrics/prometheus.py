"""Write and read the text format of Prometheus (0.0.4).

The metrics of a process, the gauges of a wheel and the published file are all families of samples, so one place names,
explains and escapes them. Only the published file is read back, and only filewheel writes it.
Invariant: `parse(render(families))` returns the families, for any text in a label.
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
    """One number, with its labels within the family."""

    name: str
    labels: Labels
    value: float


class Family(NamedTuple):
    """The samples of one name, in order, with kind and help text."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


def is_name(text: str) -> bool:
    """Return whether this is a valid metric name."""
    return _NAME.fullmatch(text) is not None


def gauge(name: str, help_: str, value: float) -> Family:
    """Return a family of one number."""
    return Family(name, GAUGE, help_, [Sample(name, (), value)])


def with_labels(families: Iterable[Family], labels: Mapping[str, str]) -> list[Family]:
    """Return the families with these labels before each sample's own."""
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
    """Return a number in this format."""
    if isinstance(value, int):
        return str(int(value))
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _clean(text: str) -> str:
    # A lone surrogate cannot be encoded; it is escaped, as in the CLI.
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
    # Not splitlines: it would split at some characters of a label.
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
