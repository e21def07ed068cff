"""Windows: against a model that holds everything and subtracts sets."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from filewheel.disk.directory import Directory
from filewheel.format import layout
from filewheel.format.frame import Gap, seal
from filewheel.format.record import ACKED, ID, pack_drop
from filewheel.format.settings import Settings
from filewheel.journal.tail import Handles
from filewheel.laps.slot import frames
from filewheel.laps.window import MISSING, Budget, Span, Window, read_window
from filewheel.message import ID_END, ID_MIN, id_after, id_floor
from tests.support import seeds
from tests.support_wheel import a_put, an_id, flip

SETTINGS = Settings(id="", salt=bytes(range(16)).hex(), slots=60)
JOURNALS = [layout.segment("AAAAAAAA", 1), layout.segment("BBBBBBBB", 1)]
SECONDS = range(58, 64)
WIDE = Budget(records=1 << 30, bytes=1 << 40)


@dataclass
class MemoryDisk:
    """A disk of files that are only read."""

    files: dict[str, bytes] = field(default_factory=dict)
    open_fds: dict[int, str] = field(default_factory=dict)
    opened: int = 0
    broken: set[str] = field(default_factory=set)

    def open(self, name: str, mode: str) -> int:
        if name in self.broken:
            raise OSError(5, "Input/output error")
        if name not in self.files:
            raise FileNotFoundError(name)
        self.opened += 1
        self.open_fds[self.opened] = name
        return self.opened

    def close(self, fd: int) -> None:
        del self.open_fds[fd]

    def size(self, fd: int) -> int:
        return len(self.files[self.open_fds[fd]])

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self.files[self.open_fds[fd]][offset : offset + size]

    def data_from(self, fd: int, offset: int) -> int:
        return offset


def seen(window: Window) -> tuple[bytes, list[bytes], set[bytes], bool, bool]:
    return window.hi, window.puts, window.loose, window.cut, window.has_drops


class Files:
    """Files to read windows from, and what a naive reader makes of them."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.dir = Directory("w", self.disk, SETTINGS)  # type: ignore[arg-type]
        self.spans: list[Span] = []
        self.puts: dict[bytes, bytes] = {}
        self.drops: set[bytes] = set()
        self.gaps: list[tuple[str, Gap]] = []

    def add(self, name: str, floor: bytes, *commits: list[bytes]) -> None:
        """Add a file of these frames."""
        data = b""
        for number, records in enumerate(commits, 1):
            ids = [r[ID] for r in records]
            puts = [r for r in records if r[1] == 1]
            data += seal(
                b"".join(records), seed=self.dir.seed(name), offset=len(data), number=number, synced=0,
                puts=len(puts), drops=len(records) - len(puts),
                first=min(ids, default=ID_END), last=max(ids, default=ID_MIN),
            )  # fmt: skip
            self.puts.update((r[ID], r) for r in puts)
            self.drops.update(r[ID] for r in records if r[1] == 2)
        self.disk.files[name] = data
        self.spans.append(Span(name, 0, len(data), floor))
        self.spans.sort(key=lambda s: s.floor)

    def pending(self, lo: bytes = ID_MIN, hi: bytes = ID_END) -> list[bytes]:
        """The model: all puts minus all drops, sorted."""
        return sorted(r for i, r in self.puts.items() if i not in self.drops and lo <= i < hi)

    def window(
        self, lo: bytes = ID_MIN, hi: bytes = ID_END, *, budget: Budget = WIDE, dropped: Any = (), handles: Any = None
    ) -> Window:
        """Read one window."""
        return read_window(
            self.dir, handles or Handles(self.dir), self.spans, lo, hi, dropped=dropped, budget=budget,
            on_gap=lambda span, gap: self.gaps.append((span.name, gap)),
        )  # fmt: skip

    def walk(self, lo: bytes = ID_MIN, hi: bytes = ID_END, *, budget: Budget, dropped: Any = ()) -> list[bytes]:
        """Read window after window, checking what each promises."""
        found: list[bytes] = []
        handles = Handles(self.dir)
        while True:
            window = self.window(lo, hi, budget=budget, dropped=dropped, handles=handles)
            self.check(window, lo, hi, budget, {*self.drops, *dropped})
            found += window.puts
            if window.hi == hi:
                handles.close()
                return found
            lo = window.hi

    def check(self, window: Window, lo: bytes, hi: bytes, budget: Budget, drops: set[bytes]) -> None:
        ids = [r[ID] for r in window.puts]
        assert ids == sorted(set(ids))
        assert all(lo <= i < window.hi for i in ids)
        assert lo < window.hi <= hi, "every window goes forward"
        assert window.cut or window.hi == hi
        assert len(ids) <= budget.records
        assert sum(map(len, window.puts)) < budget.bytes + max(map(len, window.puts), default=0)
        assert window.loose == {d for d in drops if lo <= d < window.hi and d not in self.puts}


IDS = [an_id(second, seq, us=us) for second in SECONDS for us in (0, 999_999) for seq in range(3)]
RECORDS = st.tuples(st.sampled_from(IDS), st.integers(0, 40)).map(
    lambda t: a_put(t[0], bytes(t[0][-1] * 7 % 40))  # one id, one message
) | st.sampled_from(IDS).map(lambda i: pack_drop(i, ACKED))
COMMITS = st.lists(st.lists(RECORDS, max_size=8), max_size=5)


@st.composite
def files(draw: st.DrawFn) -> Files:
    """Journals with anything in them, and slots with what belongs there."""
    found = Files()
    for name in JOURNALS:
        found.add(name, ID_MIN, *draw(COMMITS))
    for second in draw(st.sets(st.sampled_from(SECONDS))):
        low, high = id_floor(second * 10**6), id_floor((second + 1) * 10**6)
        commits = [[r for r in c if low <= r[ID] < high] for c in draw(COMMITS)]
        found.add(layout.slot(SETTINGS.lap_of(second), second, 0), low, *commits)
    return found


BUDGETS = st.builds(Budget, records=st.integers(1, 12), bytes=st.integers(1, 800))


@settings(max_examples=seeds(30, all_of=150).stop, deadline=None)
@given(files(), BUDGETS)
@example(Files(), Budget(1, 1))
def test_windows_one_after_the_other_are_the_set_difference_in_order_whatever_the_budget(
    found: Files, budget: Budget
) -> None:
    assert found.walk(budget=budget) == found.pending()
    assert found.gaps == []


@settings(max_examples=seeds(20, all_of=100).stop, deadline=None)
@given(files(), BUDGETS, st.sampled_from(IDS), st.sampled_from(IDS), st.sets(st.sampled_from(IDS), max_size=5))
def test_a_part_of_the_ids_with_drops_known_already_is_the_same_part_of_the_difference(
    found: Files, budget: Budget, a: bytes, b: bytes, dropped: set[bytes]
) -> None:
    lo, hi = min(a, b), id_after(max(a, b))
    expected = [r for r in found.pending(lo, hi) if r[ID] not in dropped]
    assert found.walk(lo, hi, budget=budget, dropped=dropped) == expected
    assert found.window(lo, hi, dropped=dropped).puts == expected


@settings(max_examples=seeds(10, all_of=50).stop, deadline=None)
@given(files(), st.randoms())
def test_reading_frames_twice_or_files_in_another_order_changes_nothing(found: Files, rng: Any) -> None:
    expected = seen(found.window())
    twice = found.spans * 2
    rng.shuffle(twice)
    found.spans = sorted(twice, key=lambda s: s.floor)
    assert seen(found.window()) == expected


def test_nothing_at_all_is_an_empty_window_up_to_what_was_asked_for() -> None:
    assert seen(Files().window()) == (ID_END, [], set(), False, False)


def test_a_message_that_is_in_a_journal_and_in_its_slot_counts_once() -> None:
    found = Files()
    put = a_put(an_id(60))
    found.add(JOURNALS[0], ID_MIN, [put], [put])
    found.add(layout.slot(1, 60, 0), id_floor(60 * 10**6), [put])
    assert found.window().puts == [put]


@pytest.mark.parametrize("order", ["drop first", "put first"])
def test_a_drop_meets_its_put_in_another_file_in_either_order(order: str) -> None:
    found = Files()
    drop, put = pack_drop(an_id(60), ACKED), a_put(an_id(60))
    one, two = (drop, put) if order == "drop first" else (put, drop)
    found.add(JOURNALS[0], ID_MIN, [one])
    found.add(JOURNALS[1], ID_MIN, [two])
    assert seen(found.window()) == (ID_END, [], set(), False, True)


def test_a_drop_without_a_put_is_loose() -> None:
    found = Files()
    found.add(JOURNALS[0], ID_MIN, [pack_drop(an_id(60), ACKED), pack_drop(an_id(61), ACKED), a_put(an_id(61))])
    assert found.window().loose == {an_id(60)}
    assert found.window(dropped=[an_id(62)]).loose == {an_id(60), an_id(62)}
    assert found.window(ID_MIN, an_id(60)).loose == set()


def test_a_put_whose_drop_lies_outside_of_the_window_is_pending_there() -> None:
    """It cannot be: a drop has the id of its put. A window never sees one without the other."""
    found = Files()
    found.add(JOURNALS[0], ID_MIN, [a_put(an_id(60)), pack_drop(an_id(60), ACKED), a_put(an_id(61))])
    assert found.window(an_id(61), ID_END).puts == [a_put(an_id(61))]
    assert found.window(ID_MIN, an_id(61)).puts == []


def test_a_dense_second_streams_within_twice_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Files()
    rng = random.Random(3)
    puts = [a_put(an_id(60, n), bytes(rng.randrange(60))) for n in range(20_000)]
    drops = [pack_drop(p[ID], ACKED) for p in puts if rng.random() < 0.3]
    name = layout.slot(1, 60, 0)
    parts = [sorted(puts[n::4]) for n in range(4)]
    data = b""
    for part in parts:
        data += frames(part, [], seed=found.dir.seed(name), offset=len(data), number=1)
    data += frames([], sorted(drops), seed=found.dir.seed(name), offset=len(data), number=2)
    found.disk.files[name] = data
    found.spans = [Span(name, 0, len(data), id_floor(60 * 10**6))]
    found.puts, found.drops = {p[ID]: p for p in puts}, {d[ID] for d in drops}
    budget = Budget(records=3_000, bytes=1 << 30)
    largest = 0
    take = filewheel_reader().take

    def watch(self: Any, frame: Any) -> None:
        nonlocal largest
        take(self, frame)
        largest = max(largest, len(self._puts) + len(self._drops))

    monkeypatch.setattr(filewheel_reader(), "take", watch)
    assert found.walk(budget=budget) == found.pending()
    in_a_frame = (1 << 17) // 21
    assert largest <= 2 * budget.records + in_a_frame


def test_what_was_dropped_takes_no_memory_however_large_it_was() -> None:
    found = Files()
    puts = [a_put(an_id(60, n), bytes(50_000)) for n in range(400)]
    last = a_put(an_id(61), b"waits")
    found.add(layout.slot(1, 60, 0), id_floor(60 * 10**6), *[puts[n : n + 4] for n in range(0, 400, 4)], [last])
    tracemalloc.start()
    try:
        window = found.window(dropped=[p[ID] for p in puts], budget=Budget(bytes=1 << 20))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert window.puts == [last]
    assert most < 4 << 20, "20 MB lie in the file"


def filewheel_reader() -> Any:
    import filewheel.laps.window

    return filewheel.laps.window._Reader


# -- what cannot be read ----------------------------------------------------------------------------------------


@pytest.fixture
def two() -> Files:
    """A journal, and a slot of three frames."""
    found = Files()
    found.add(JOURNALS[0], ID_MIN, [a_put(an_id(59))])
    found.add(layout.slot(1, 60, 0), id_floor(60 * 10**6), *[[a_put(an_id(60, n))] for n in range(3)])
    return found


SLOT = layout.slot(1, 60, 0)


def test_a_file_that_is_missing_is_reported_in_its_whole_length_and_the_rest_is_read(two: Files) -> None:
    length = len(two.disk.files.pop(SLOT))
    assert two.window().puts == [a_put(an_id(59))]
    assert two.gaps == [(SLOT, Gap(0, length, MISSING, at_end=True))]


def test_a_file_that_cannot_be_opened_is_an_error_and_not_an_empty_file(two: Files) -> None:
    two.disk.broken.add(SLOT)
    with pytest.raises(OSError, match="Input/output error"):
        two.window()
    assert not two.gaps


def test_a_file_that_is_too_short_is_reported_from_where_it_ends(two: Files) -> None:
    length = len(two.disk.files[SLOT])
    two.disk.files[SLOT] = two.disk.files[SLOT][: length // 3]
    assert len(two.window().puts) == 2
    assert two.gaps == [(SLOT, Gap(length // 3, length, "the file is too short", at_end=True))]


def test_a_file_that_is_too_short_and_is_removed_meanwhile_is_missing(two: Files) -> None:
    two.disk.files[SLOT] = b""
    close = two.disk.close

    def removed(fd: int) -> None:
        close(fd)
        two.disk.files.pop(SLOT, None)

    two.disk.close = removed  # type: ignore[method-assign]
    assert two.window().puts == [a_put(an_id(59))]
    assert [(name, gap.reason) for name, gap in two.gaps] == [(SLOT, MISSING)]


def test_a_file_that_lacks_only_its_last_padding_is_not_too_short(two: Files) -> None:
    put = a_put(an_id(60, 7), b"1234567")
    two.add(SLOT, id_floor(60 * 10**6), [put])
    size = 72 + len(put)
    assert 0 < len(two.disk.files[SLOT]) - size < 8
    two.disk.files[SLOT] = two.disk.files[SLOT][:size]
    two.spans = [s for s in two.spans if s.end == (size + 7) // 8 * 8]
    assert two.window().puts == [put]
    assert two.gaps == []


def test_a_damaged_frame_is_reported_and_the_others_are_read(two: Files) -> None:
    data = two.disk.files[SLOT]
    size = len(data) // 3
    for n in range(3):
        two.gaps.clear()
        two.disk.files[SLOT] = flip(data, (size * n + 75) * 8)
        assert [r[ID] for r in two.window().puts] == [an_id(59), *[an_id(60, k) for k in range(3) if k != n]]
        ((name, gap),) = two.gaps
        assert (name, gap.offset, gap.end, gap.reason) == (SLOT, size * n, size * (n + 1), "body checksum")


def test_a_frame_that_verifies_and_holds_nonsense_is_reported_and_the_others_are_read(two: Files) -> None:
    data = two.disk.files[SLOT]
    bad = an_id(60, 9)
    for body, drops in ((b"\xc1", 0), (a_put(bad) + b"\x90", 1)):
        two.gaps.clear()
        where = {"seed": two.dir.seed(SLOT), "offset": len(data)}
        frame = seal(body, **where, number=9, synced=8, puts=1, drops=drops, first=bad, last=bad)
        two.disk.files[SLOT] = data + frame
        two.spans = [Span(s.name, 0, len(two.disk.files[s.name]), s.floor) for s in two.spans]
        assert len(two.window().puts) == 4
        ((name, gap),) = two.gaps
        assert (name, gap.offset, gap.end) == (SLOT, len(data), len(data) + len(frame))


def test_what_lies_above_the_covered_length_is_not_read(two: Files) -> None:
    third = len(two.disk.files[SLOT]) // 3
    two.spans = [two.spans[0], Span(SLOT, 0, third, two.spans[1].floor)]
    assert [r[ID] for r in two.window().puts] == [an_id(59), an_id(60, 0)]
    two.spans[1] = Span(SLOT, third, 2 * third, two.spans[1].floor)
    assert [r[ID] for r in two.window().puts] == [an_id(59), an_id(60, 1)]
    assert two.gaps == []


def test_files_above_the_window_are_not_even_opened(two: Files) -> None:
    two.disk.files.pop(SLOT)
    assert two.window(ID_MIN, id_floor(60 * 10**6)).puts == [a_put(an_id(59))]
    assert two.window(budget=Budget(records=1, bytes=1 << 20)).puts == [a_put(an_id(59))]
    assert two.gaps == []


def test_more_files_than_handles_are_read_and_few_stay_open() -> None:
    found = Files()
    for second in range(60, 120):
        found.add(layout.slot(1, second, 0), id_floor(second * 10**6), [a_put(an_id(second))])
    handles = Handles(found.dir, limit=4)
    assert found.window(handles=handles).puts == found.pending()
    assert len(found.disk.open_fds) == 4
    handles.close()
    assert found.disk.open_fds == {}
