"""The text that Prometheus scrapes (format 0.0.4): written from families of samples, and read back into them.

Metrics, the gauges of the shell and what a running scheduler published meet here as families, so that each is named,
explained and escaped in one way. Reading back is for what filewheel wrote itself, perhaps in another version.
Invariant: `parse(render(families))` gives the families back, whatever text a label holds.
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
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"(?:,|$)')
_ESCAPED = re.compile(r"\\(.)")
_KINDS = frozenset({COUNTER, GAUGE, HISTOGRAM, "untyped", "summary"})
_SUFFIXES = ("_bucket", "_sum", "_count")


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
    """Read families from a text that `render` wrote; `place` names it in errors.

    Raises Damaged at the first line that cannot be one.
    """
    families: dict[str, Family] = {}
    # Not splitlines: a label may hold characters that it takes for the end of a line.
    for n, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        if line.startswith("# "):
            _comment(families, line)
            continue
        sample = _sample(line)
        if sample is None:
            raise Damaged(f"line {n} is not a metric", path=place, hint="remove the file; it is written anew")
        _family_of(families, sample.name).samples.append(sample)
    return [f for f in families.values() if f.samples]


def _comment(families: dict[str, Family], line: str) -> None:
    word, _, rest = line[2:].partition(" ")
    name, _, said = rest.partition(" ")
    if word not in ("HELP", "TYPE") or not is_name(name):
        return
    known = families.get(name) or Family(name, "untyped", "", [])
    if word == "HELP":
        families[name] = known._replace(help=_unescaped(said))
    elif said in _KINDS:
        families[name] = known._replace(kind=said)


def _sample(line: str) -> Sample | None:
    match = _SAMPLE.fullmatch(line)
    if match is None:
        return None
    labels: list[tuple[str, str]] = []
    inside, at = match[2] or "", 0
    while at < len(inside):
        label = _LABEL.match(inside, at)
        if label is None:
            return None
        labels.append((label[1], _unescaped(label[2])))
        at = label.end()
    try:
        value = int(match[3]) if match[3].isdecimal() else float(match[3])
    except ValueError:
        return None
    return Sample(match[1], tuple(labels), value)


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], text)


def _family_of(families: dict[str, Family], name: str) -> Family:
    for suffix in _SUFFIXES:
        family = families.get(name.removesuffix(suffix))
        if family is not None and name.endswith(suffix) and family.kind == HISTOGRAM:
            return family
    return families.setdefault(name, Family(name, "untyped", "", []))
