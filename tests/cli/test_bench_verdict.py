"""The judgement of `bench`: for the figures of disks that we know, and at its limits, it says what is true of them."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from cli.bench.figures import Figures, percentile
from cli.bench.measure import plan
from cli.bench.verdict import DISKS, FAST_US, PROTECTED_US, SLOW_US, UNLIKELY_US, disk_of, duration, gain, judge, rate


def disk(flush_us: float, **changed: float) -> Figures:
    """The figures of a disk whose flush costs this, if nothing else is slow."""
    bare = 1e6 / flush_us
    one = 1e6 / (flush_us + 4)
    made = Figures(
        flush_us=flush_us,
        flush_p99_us=flush_us * 3,
        bare_per_s=bare,
        one_per_s=one,
        share=one / bare,
        threads_per_s=min(70_000, one * 5),
        batch_100_per_s=100e6 / (flush_us + 100),
        batch_1000_per_s=1000e6 / (flush_us + 1000),
        interval_per_s=200_000,
        never_per_s=240_000,
        fire_per_s=400_000,
        late_p50_ms=0.12,
        late_p99_ms=0.4,
        early=0,
    )
    return replace(made, **changed)  # type: ignore[arg-type]


MEMORY = disk(0.8, threads_per_s=41_000)
PROTECTED = disk(30)
NVME = disk(220)
SATA = disk(2500)
SPINNING = disk(12_000)


@pytest.mark.parametrize(
    ("flush_us", "file_system", "expected"),
    [
        (0.8, "tmpfs", "memory"),
        (9000, "tmpfs", "memory"),
        (9000, "nfs4", "network"),
        (0.8, "ext4", "unlikely"),
        (UNLIKELY_US - 0.01, "ext4", "unlikely"),
        (UNLIKELY_US, "ext4", "protected"),
        (PROTECTED_US - 0.01, "xfs", "protected"),
        (PROTECTED_US, "xfs", "fast"),
        (FAST_US - 0.01, "", "fast"),
        (FAST_US, "", "ordinary"),
        (SLOW_US, "ext4", "ordinary"),
        (SLOW_US + 0.01, "ext4", "slow"),
    ],
)
def test_the_flush_and_the_file_system_say_what_kind_of_disk_it_is(
    flush_us: float, file_system: str, expected: str
) -> None:
    assert disk_of(flush_us, file_system) == expected
    assert expected in DISKS


def test_a_fast_disk_keeps_always_and_gets_batches_and_threads() -> None:
    verdict = judge(NVME, "ext4")
    assert (verdict.disk, verdict.sync, verdict.warnings) == ("fast", "always", [])
    assert verdict.flush == "A flush costs 220 µs here (ext4). That looks like a fast SSD, or a virtual disk on one."
    assert verdict.filewheel == (
        "One thread enqueues 98% as fast as it makes the bare system calls: the disk is the limit, not filewheel."
    )
    assert verdict.choices["always"] == (
        "4,500/s from one thread, 22,000/s from 8 threads, 310,000/s in batches of 100, "
        "820,000/s in batches of 1,000. A message whose enqueue returned survives a power cut."
    )
    assert verdict.choices["0.05"].startswith(
        "200,000/s from one thread, 45 times as fast. A power cut takes up to 50 ms"
    )
    assert verdict.choices["never"].startswith(
        "240,000/s from one thread, 54 times as fast. A power cut takes the messages"
    )
    assert verdict.recommendation == (
        "Your flush costs 220 µs: keep sync=always. If one thread needs more than 4,500/s, enqueue in batches of 100 "
        "for 310,000/s, or from 8 threads for 22,000/s. Only if that is not possible, and the last 50 ms may be lost "
        "in a power cut: sync=0.05 for 200,000/s."
    )
    assert verdict.firing == (
        "Due messages fire 120 µs late in the median, 400 µs at the 99th percentile. "
        "A million messages that piled up fire in 2.5 s."
    )


def test_an_ordinary_ssd_is_told_from_a_fast_one_and_keeps_always() -> None:
    verdict = judge(SATA, "ext4")
    assert (verdict.disk, verdict.sync, verdict.warnings) == ("ordinary", "always", [])
    assert "2.5 ms" in verdict.flush
    assert "more than 400/s" in verdict.recommendation


def test_a_spinning_disk_keeps_always_with_batches_and_hears_that_it_is_slow() -> None:
    verdict = judge(SPINNING, "ext4")
    assert (verdict.disk, verdict.sync) == ("slow", "always")
    assert "a spinning disk, a network volume" in verdict.flush
    assert "If one thread needs more than 83/s, enqueue in batches of 100 for 8,300/s" in verdict.recommendation
    (warning,) = verdict.warnings
    assert warning.startswith("More than 5 ms for a flush is much.")


def test_a_disk_with_protection_is_so_fast_that_the_work_of_filewheel_counts() -> None:
    verdict = judge(PROTECTED, "ext4")
    assert (verdict.disk, verdict.sync, verdict.warnings) == ("protected", "always", [])
    assert "88% as fast" in verdict.filewheel
    assert "filewheel's own work counts, 4.0 µs a message" in verdict.filewheel


def test_memory_survives_nothing_so_a_flush_buys_nothing() -> None:
    verdict = judge(MEMORY, "tmpfs")
    assert (verdict.disk, verdict.sync, verdict.warnings) == ("memory", "never", [])
    assert "gone with the next reboot" in verdict.flush
    assert "41,000/s from 8 threads (they would share flushes" in verdict.choices["always"]
    for text in verdict.choices.values():
        assert text.endswith("A power cut takes everything; the crash of a process nothing.")
    assert "put the wheel on a disk" in verdict.recommendation


def test_a_disk_that_is_too_fast_is_not_trusted() -> None:
    verdict = judge(MEMORY, "ext4")
    assert (verdict.disk, verdict.sync) == ("unlikely", "always")
    assert "only if the disk tells the truth" in verdict.choices["always"]
    (warning,) = verdict.warnings
    assert "cache without a battery" in warning
    assert "only if the disk tells the truth" in warning
    assert verdict.recommendation.startswith("Keep sync=always: your flush costs 0.8 µs")


def test_a_network_file_system_is_advised_against() -> None:
    verdict = judge(NVME, "nfs4")
    assert (verdict.disk, verdict.sync) == ("network", "always")
    assert verdict.recommendation.startswith("Put the wheel on a local disk.")
    assert "if the server tells the truth" in verdict.choices["always"]


@pytest.mark.parametrize("figures", [MEMORY, PROTECTED, NVME, SATA, SPINNING])
@pytest.mark.parametrize("file_system", ["ext4", "xfs", ""])
def test_where_a_flush_may_protect_nothing_less_than_always_is_recommended(figures: Figures, file_system: str) -> None:
    assert judge(figures, file_system).sync == "always"


@pytest.mark.parametrize(
    ("share", "flush_us", "expected"),
    [
        (1.02, 220, "as fast as it makes the bare system calls: the disk is the limit"),
        (0.9, 220, "90% as fast as it makes the bare system calls: the disk is the limit"),
        (0.89, 220, "89% as fast as it makes the bare system calls: most of the time goes to the disk"),
        (0.7, 220, "most of the time goes to the disk, 67 µs a message to filewheel"),
        (0.69, 220, "Is the machine busy? Measure again"),
        (0.69, PROTECTED_US - 1, "filewheel's own work counts"),
    ],
)
def test_how_close_filewheel_comes_is_said_for_what_it_is(share: float, flush_us: float, expected: str) -> None:
    assert expected in judge(disk(flush_us, share=share), "ext4").filewheel


def test_threads_and_intervals_are_recommended_only_where_they_gain() -> None:
    alone = judge(replace(NVME, threads_per_s=NVME.one_per_s * 1.4), "ext4").recommendation
    assert "threads" not in alone
    assert "in batches of 100" in alone
    little = judge(replace(NVME, interval_per_s=NVME.one_per_s * 1.4), "ext4")
    assert little.recommendation.endswith("sync=0.05 would gain next to nothing.")
    assert "1.4 times as fast" in little.choices["0.05"]


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (disk(220, flush_p99_us=5001), "One flush in a hundred takes 5.0 ms or more"),
        (disk(220, late_p99_ms=21), "One message in a hundred fires 21 ms late"),
        (disk(220, early=2), "2 messages fired early"),
    ],
)
def test_what_is_odd_is_warned_of(figures: Figures, expected: str) -> None:
    (warning,) = judge(figures, "ext4").warnings
    assert expected in warning


def test_a_tail_that_is_short_or_in_proportion_is_not_odd() -> None:
    assert judge(disk(220, flush_p99_us=4999), "ext4").warnings == []
    assert judge(disk(2500, flush_p99_us=24_000), "ext4").warnings == []
    assert judge(disk(220, late_p99_ms=19.9), "ext4").warnings == []


@pytest.mark.parametrize("figures", [MEMORY, PROTECTED, NVME, SATA, SPINNING])
@pytest.mark.parametrize("file_system", ["ext4", "tmpfs", "nfs"])
def test_every_sentence_is_whole(figures: Figures, file_system: str) -> None:
    fields = asdict(judge(figures, file_system))
    texts = [fields["flush"], fields["filewheel"], fields["recommendation"], fields["firing"]]
    for text in [*texts, *fields["choices"].values(), *fields["warnings"]]:
        assert text[0].isupper() or text[0].isdigit()
        assert text.endswith((".", "?"))
        assert "  " not in text
    assert fields["sync"] in fields["choices"]


# -- quantities -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("us", "text"),
    [(0.79, "0.8 µs"), (9.96, "10 µs"), (242.3, "240 µs"), (994, "990 µs"), (999.6, "1.0 ms"), (1340, "1.3 ms"),
     (250_000, "250 ms"), (999_600, "1.0 s"), (2.64e6, "2.6 s")],
)  # fmt: skip
def test_a_duration_has_two_digits(us: float, text: str) -> None:
    assert duration(us) == text


@pytest.mark.parametrize(
    ("per_s", "text"),
    [(0.52, "0.5/s"), (9.94, "9.9/s"), (10, "10/s"), (83.3, "83/s"), (4137, "4,100/s"), (516_150, "520,000/s")],
)
def test_a_rate_has_two_digits(per_s: float, text: str) -> None:
    assert rate(per_s) == text


@pytest.mark.parametrize(
    ("times", "text"),
    [(0.5, "no faster"), (1.09, "no faster"), (1.1, "1.1 times as fast"), (9.94, "9.9 times as fast"),
     (53.6, "54 times as fast")],
)  # fmt: skip
def test_a_gain_is_told_in_times(times: float, text: str) -> None:
    assert gain(times * 1000, 1000) == text


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(i) for i in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (51, 100, 100)
    assert percentile([7.0], 0.99) == 7


@pytest.mark.parametrize("budget_s", [0.05, 1, 20, 60, 600])
def test_a_plan_spends_its_budget_and_has_a_median(budget_s: float) -> None:
    parts = plan(budget_s)
    assert parts.rounds >= 3
    assert parts.backlog >= 1000
    assert parts.rounds * parts.slice_s * 7 + parts.lateness_s == pytest.approx(0.85 * budget_s)
