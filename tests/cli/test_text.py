"""How things look: safe to print, cut to a width, in units; the picture of the time ahead; the bar."""

from __future__ import annotations

import io
import itertools
import json
import os
import time
from collections.abc import Iterator

import pytest

import cli.show.progress
from cli.demo.ring import HEIGHT, SLOTS, draw, place
from cli.show import text
from cli.show.output import Column, Output, _fitted
from cli.show.picture import CountsAhead, bars, draw_rows, draw_view, lying_bar
from cli.show.progress import ProgressLine
from filewheel import Histogram

HOSTILE = "a\x00\x07\x1b[31m\x7f\x9b2J\u061c\u200f\u202e\u2066\u2028\ud800\r\n\tz"


def plain(text: str, role: str) -> str:
    return text


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_safe_text_is_one_line_that_steers_nothing() -> None:
    shown = text.safe(HOSTILE)
    assert shown.isprintable()
    assert shown.startswith("a\\x00\\x07\\x1b[31m\\x7f\\x9b2J")
    assert shown.endswith("\\u202e\\u2066\\u2028\\ud800\\r\\n\\tz")
    assert text.safe("grüße 漢字 → ok") == "grüße 漢字 → ok"


def test_a_block_keeps_its_lines_and_tabs_and_nothing_else() -> None:
    assert text.safe_block("a\tb\nc\x1b\r\n") == "a\tb\nc\\x1b\\r\n"


def test_json_is_safe_to_print_and_says_the_same() -> None:
    for ascii_only in (False, True):
        line = text.to_line({"x": HOSTILE, "ü": "漢"}, ascii_only=ascii_only)
        assert json.loads(line) == {"x": HOSTILE, "ü": "漢"}
        assert line.isprintable()
        assert ("漢" in line) is not ascii_only


def test_joined_signs_are_as_wide_as_a_terminal_shows_them_and_are_not_cut_apart() -> None:
    family = "👨\u200d👩\u200d👧"
    assert text.width(family) == 2
    assert text.width("☁️") == 2
    assert text.width("é\x1b") == 1
    assert text.clip(family + "abc", 4) == family + "a…"
    assert text.clip("☁️☁️☁️", 5) == "☁️☁️…"


def test_the_widest_columns_of_text_are_cut_evenly_until_a_row_fits_and_what_is_shown_whole_is_not() -> None:
    columns = [Column("ID"), Column("A", 30), Column("B", 30), Column("N", right=True)]
    assert _fitted(columns, [26, 40, 10, 4], 80) == [26, 40, 10, 4]
    assert _fitted(columns, [26, 60, 10, 4], 80) == [26, 40, 10, 4]
    assert _fitted(columns, [26, 60, 60, 4], 80) == [26, 25, 25, 4]
    assert _fitted(columns, [26, 60, 60, 4], 42) == [26, 6, 6, 4]
    assert _fitted(columns, [26, 60, 60, 4], 40) == [26, 5, 5, 4]
    assert _fitted(columns, [26, 60, 60, 4], 20) == [26, 4, 4, 4]


def test_rows_of_the_picture_stand_under_each_other_by_the_width_of_their_labels() -> None:
    lines = draw_rows("by topic", [("日本語", 3), ("mail", 12)], lambda t, _: t, blocks=True)
    assert [text.width(line[: line.index("█")]) for line in lines[1:]] == [2 + 6 + 2 + 2 + 2] * 2


def test_rows_of_the_picture_are_longer_where_the_terminal_is_wide() -> None:
    (_, narrow), (_, wide) = (draw_rows("t", [("a", 1)], lambda t, _: t, blocks=True, columns=n) for n in (80, 160))
    assert text.width(narrow) < 80 < text.width(wide) <= 160


def test_widths_count_columns_not_characters() -> None:
    assert text.width("漢字") == 4
    assert text.width("é") == 1
    assert text.pad("漢", 4) == "漢  "
    assert text.pad("7", 3, right=True) == "  7"
    assert text.clip("abcdef", 4) == "abc…"
    assert text.clip("漢字漢字", 5) == "漢字…"
    assert text.clip("abc", 3) == "abc"
    assert text.clip("abcdef", 5, "...") == "ab..."


@pytest.mark.parametrize(
    ("us", "shown"),
    [
        (0, "0s"), (7, "7µs"), (250_000, "250ms"), (1_000_000, "1s"), (1_500_000, "1.5s"), (42_000_000, "42s"),
        (90_000_000, "1m 30s"), (5_400_000_000, "1h 30m"), (3_600_000_000, "1h"), (200_000_000_000, "2d 7h"),
        (40_000_000_000_000, "1y 97d"),
    ],
)  # fmt: skip
def test_spans_are_written_in_two_units(us: int, shown: str) -> None:
    assert text.span(us) == shown


def test_quantities_have_units() -> None:
    assert [text.size(n) for n in (0, 1023, 1024, 1_234_567, 39_271_712, 5 * 10**13)] == [
        "0 B", "1023 B", "1.0 KiB", "1.2 MiB", "37 MiB", "45 TiB",
    ]  # fmt: skip
    assert text.count(1, "message") == "1 message"
    assert text.count(2000, "message") == "2,000 messages"
    assert text.count(2, "place is", "places are") == "2 places are"
    assert text.away(5_000_000) == "in 5s"
    assert text.away(-5_000_000) == "5s ago"


def test_times_are_as_short_as_their_distance_allows() -> None:
    now = 1_800_000_000_000_000  # 2027-01-15 08:00 UTC
    assert text.short_time(now + 60_000_000, now) == "08:01:00"
    assert text.short_time(now + 30 * 86_400_000_000, now) == "Feb 14 08:00"
    assert text.short_time(now + 400 * 86_400_000_000, now) == "2028-02-19"
    assert text.full_time(now + 250_000) == "2027-01-15 08:00:00.25 +00:00"
    assert text.full_time(253_402_300_799_999_999).startswith("9999-12-31")


# -- tables ---------------------------------------------------------------------------------------------------


def test_a_table_is_aligned_and_safe(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table([Column("NAME"), Column("N", right=True), Column("TEXT")], [("漢字", "1", "x\x1b"), ("a", "22", "")])
    assert capsys.readouterr().out.splitlines() == ["NAME   N  TEXT", "漢字   1  x\\x1b", "a     22"]


# -- bars -----------------------------------------------------------------------------------------------------


def test_bars_fill_from_below_and_what_is_not_zero_is_seen() -> None:
    assert bars([0, 1, 50, 100], 2, blocks=True) == ["   █", " ▁██"]
    assert bars([0, 1, 100], 1, blocks=False) == [" .|"]
    assert bars([], 2, blocks=True) == ["", ""]
    assert bars([0, 0], 1, blocks=True) == [""]


def test_lying_bars_are_in_proportion() -> None:
    assert lying_bar(100, 100, 10, blocks=True) == "█" * 10
    assert lying_bar(50, 100, 5, blocks=True) == "██▌"
    assert lying_bar(1, 10_000, 5, blocks=True) == "▏"
    assert lying_bar(0, 100, 5, blocks=True) == ""
    assert lying_bar(1, 10_000, 5, blocks=False) == "#"


NOW = 1_800_000_000_500_000


def _ahead(dues: list[int]) -> CountsAhead:
    ahead = CountsAhead(NOW)
    edges = ahead.edges_us
    counts = [sum(a <= d < b for d in dues) for a, b in itertools.pairwise(edges)]
    before, after = sum(d < edges[0] for d in dues), sum(d >= edges[-1] for d in dues)
    ahead.fill(Histogram(edges, counts, before, after))
    return ahead


def test_what_is_due_lands_in_its_bar_and_what_is_overdue_in_none() -> None:
    second = 1_000_000
    dues = [NOW - 1, NOW - 400_000, NOW, NOW + second, NOW + 59 * second, NOW + 90 * second, NOW + 86_400 * second * 3]
    ahead = _ahead(dues)
    minute, hour, day = (ahead.counts(view) for view in ahead.views)
    assert ahead.overdue == 2
    assert (minute[0], minute[1], minute[59], sum(minute)) == (1, 1, 1, 3)
    assert (hour[0], hour[1], sum(hour)) == (3, 1, 4)
    assert (day[0], sum(day)) == (4, 4)
    ends = _ahead(
        [view.end_us - 1 for view in CountsAhead(NOW).views] + [view.end_us for view in CountsAhead(NOW).views]
    )
    assert [sum(ends.counts(view)) for view in ends.views] == [1, 3, 5]
    assert dict(ahead.far()) == {
        "1 to 2 days": 0, "2 to 7 days": 1, "1 to 4 weeks": 0, "1 to 12 months": 0, "later": 0,
    }  # fmt: skip


def test_every_message_is_overdue_or_in_the_longest_view_or_beyond() -> None:
    dues = [NOW + int(i**3.7 * 1000) - 5_000_000 for i in range(3000)]
    ahead = _ahead(dues)
    assert ahead.overdue + sum(ahead.counts(ahead.views[-1])) + sum(n for _, n in ahead.far()) == len(dues)
    fields = ahead.to_json()
    assert [len(fields[name]["counts"]) for name in ("minute", "hour", "day")] == [61, 61, 49]
    assert fields["overdue"] == ahead.overdue


@pytest.mark.parametrize("blocks", [True, False])
def test_a_view_fits_80_columns_and_has_labels(blocks: bool) -> None:
    ahead = _ahead([NOW + i * 700_000 for i in range(5000)])
    for view in ahead.views:
        lines = draw_view(view, ahead.counts(view), 3, plain, blocks=blocks)
        assert len(lines) == 5
        assert max(map(text.width, lines)) <= 80
        assert all(line.isascii() for line in lines) is not blocks
    assert "now" in draw_view(ahead.views[0], [1] * 61, 1, plain, blocks=True)[-1]
    assert "08:00" in draw_view(ahead.views[1], [1] * 61, 1, plain, blocks=True)[-1]
    assert draw_view(ahead.views[0], [0] * 61, 3, plain, blocks=True) == ["next minute  nothing due"]


def test_rows_share_a_scale_and_nothing_is_drawn_of_nothing() -> None:
    assert draw_rows("t", [("a", 0)], plain, blocks=True) == []
    lines = draw_rows("t", [("mail", 2000), ("x", 1000)], plain, blocks=True)
    assert lines[1].count("█") // 2 == lines[2].count("█")


# -- the ring -------------------------------------------------------------------------------------------------


def test_the_ring_has_a_place_for_each_slot_and_always_the_same_height() -> None:
    assert len({place(slot) for slot in range(SLOTS)}) == SLOTS
    for now_slot in range(SLOTS):
        lines = draw([5] * SLOTS, now_slot, ["hub", "of it"], plain, blocks=True)
        assert len(lines) == HEIGHT
        assert max(map(len, lines)) <= 72
        assert sum(line.count("5") for line in lines) == SLOTS
        assert sum(line.count("[") for line in lines) == 1
    assert all(line.isascii() for line in draw([0] * SLOTS, 3, ["x"], plain, blocks=False))


# -- the bar --------------------------------------------------------------------------------------------------


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_progress_shows_late_and_wipes_itself_away(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(cli.show.progress, "time", clock)
    stream = io.StringIO()
    with ProgressLine("loading", 200, stream) as progress:
        progress.add(50)
        assert stream.getvalue() == ""
        clock.now += 3
        progress.add(50)
        assert stream.getvalue() == "\r\x1b[Kloading  ━━━━━━━━━━━━────────────  50%  3s left"
        progress.add(50)  # too soon to draw again
        assert stream.getvalue().count("\r") == 1
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_short_or_hidden_job_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(cli.show.progress, "time", clock)
    stream = io.StringIO()
    with ProgressLine("x", 2, stream) as progress:
        progress.add(2)
    with ProgressLine("x", None, None) as progress:
        clock.now += 60
        progress.add(2)
    assert stream.getvalue() == ""


def test_nothing_is_written_to_a_terminal_that_is_not_there() -> None:
    out = Output()
    read, write = os.pipe()
    with os.fdopen(read) as stream:
        os.close(write)
        assert not out.is_terminal(stream)
    assert not out.is_terminal(stream)  # closed
    assert not out.is_terminal(None)
