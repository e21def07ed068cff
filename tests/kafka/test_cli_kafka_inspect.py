"""`filewheel kafka inspect`: the wheels of a node, beside it and without it. No broker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Wheel
from filewheel.env import SYSTEM_CLOCK
from filewheel.kafka import Policy
from filewheel.kafka.node.rules import Rules
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.partition.position import RecordOrigin
from filewheel.kafka.records.record import Record
from filewheel.message import US_PER_S
from tests.cli.support import invoke, on_terminal
from tests.conftest import assert_whole

HOUR_MS = 3_600_000


def record(partition: int, offset: int, after_ms: int, target: str, value: bytes | None, **headers: bytes) -> Record:
    now_ms = SYSTEM_CLOCK.now_us() // 1000
    due = [("filewheel-due-ms", b"%d" % (now_ms + after_ms)), ("scheduler-target-topic", target.encode())]
    return Record(partition, offset, b"k%d" % offset, value, [*due, *headers.items()], now_ms)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """The data of a node that runs: two partitions, open, with five records."""
    policy = Policy("delays")
    understand = Rules(policy, "node", "").understand
    open_ones = []
    for n, records in enumerate(
        [
            [
                record(0, 0, 30_000, "mails", b"soon", lang=b"en"),
                record(0, 1, 2 * HOUR_MS, "mails", b"\xff\xfe"),
                record(0, 2, 50 * HOUR_MS, "orders", None),
            ],
            [record(1, 0, HOUR_MS // 2, "mails", b"half"), Record(1, 1, None, b"odd", [], 0)],
        ]
    ):
        partition = Partition(tmp_path / "data" / "delays" / str(n), RecordOrigin("c", "delays", n, "", policy.digest))
        partition.take_in(understand(records))
        open_ones.append(partition)
    yield tmp_path / "data"
    for partition in open_ones:
        partition.close()
        assert_whole(Path(partition.path))


def test_what_waits_is_counted_by_partition_target_and_time_beside_a_running_node(data: Path) -> None:
    result = invoke("kafka", "inspect", "-d", data)
    assert result.code == 0, result
    first, second = result.json
    assert (first["topic"], first["partition"], first["waiting"], first["is_served"]) == ("delays", 0, 3, True)
    assert first["targets"] == {"mails": 2, "orders": 1}
    assert first["within"] == {"1m": 1, "1h": 1, "1d": 2, "30d": 3}
    assert second["targets"] == {"mails": 1, "delays.dlt": 1}
    assert second["next_due_us"] < SYSTEM_CLOCK.now_us()


def test_records_are_listed_by_target_and_time_and_one_is_shown_by_its_id(data: Path) -> None:
    listed = invoke("kafka", "inspect", "-d", data, "--list", "--target", "mail*", "--within", "1h").json
    assert [one["id"] for one in listed] == ["delays-0-0", "delays-1-0"]
    assert listed[0]["payload"] == "soon"
    assert listed[0]["headers"]["lang"] == "en"
    assert listed[0]["key"] == "k0"
    (one,) = invoke("kafka", "inspect", "-d", data, "delays-0-1").json
    assert (one["payload_b64"], one["target"], one["fate"]) == ("//4=", "mails", "deliver")
    (dead,) = invoke("kafka", "inspect", "-d", data, "delays-1-1").json
    assert dead["fate"] == "dead-letter"
    assert dead["reason"].startswith("it has no due")
    assert len(invoke("kafka", "inspect", "-d", data, "--list", "--limit", "2").json) == 2
    assert [r["partition"] for r in invoke("kafka", "inspect", "-d", data, "--partition", "1").json] == [1]


def test_tables_fit_a_terminal(data: Path) -> None:
    shown = on_terminal("kafka", "inspect", "-d", data).out
    assert "TARGET" in shown
    assert "delays.dlt" in shown
    listed = on_terminal("kafka", "inspect", "-d", data, "--list").out
    assert "delays-0-0" in listed
    assert max(len(line) for line in (shown + listed).splitlines()) <= 80


def test_a_look_at_the_wheels_of_a_running_node_changes_no_file(data: Path) -> None:
    with Wheel(data / "delays" / "0") as wheel:
        assert wheel.has_keeper()
    before = sorted((p, p.stat().st_size) for p in data.rglob("*"))
    invoke("kafka", "inspect", "-d", data, "--list")
    assert sorted((p, p.stat().st_size) for p in data.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-d", "{data}/none"], 10, "there is no such directory"),
        (["-d", "{data}/delays"], 10, "no wheel of a delay service is there"),
        (["-d", "{data}/delays/0"], 10, "it is one wheel"),
        (["-d", "{data}", "-t", "other"], 4, "there are delays 0, delays 1"),
        (["-d", "{data}", "--partition", "7"], 4, "no wheel of that topic and partition"),
        (["-d", "{data}", "delays-0-99"], 4, "no record delays-0-99 waits here"),
        (["-d", "{data}", "delays-5-0"], 4, "no record delays-5-0 waits here"),
        (["-d", "{data}", "nonsense"], 2, "write TOPIC-PARTITION-OFFSET"),
        (["-d", "{data}", "-1-2"], 2, ""),
        (["-d", "{data}", "--limit", "1"], 2, "--limit goes with --list"),
        ([], 2, "Missing option '-d'"),
    ],
)
def test_wrong_words_and_places_are_named(data: Path, words: list[str], code: int, said: str) -> None:
    result = invoke("kafka", "inspect", *(word.format(data=data) for word in words))
    assert (result.code, said in result.err) == (code, True), result


def test_a_damaged_wheel_is_listed_as_far_as_it_goes_with_exit_code_12(data: Path) -> None:
    # A record of another program in the wheel is damage of the payload.
    other = data / "delays" / "7"
    with Wheel.create(other) as wheel:
        wheel.enqueue(b"no record", at=SYSTEM_CLOCK.now_us() / US_PER_S + 60)
    result = invoke("kafka", "inspect", "-d", data, "--list", "--partition", "7")
    assert result.code == 12
    assert "no waiting record of Kafka" in result.err


def test_a_wheel_that_the_running_node_does_not_have_open_is_left_out_and_named(data: Path) -> None:
    policy = Policy("delays")
    path = data / "delays" / "2"
    with contextlib.closing(Partition(path, RecordOrigin("c", "delays", 2, "", policy.digest))) as moved:
        moved.take_in(Rules(policy, "node", "").understand([record(2, 0, 30_000, "mails", b"moved")]))
    result = invoke("kafka", "inspect", "-d", data)
    assert [one["partition"] for one in result.json] == [0, 1]
    assert "not counted, because the node that runs does not have them open: delays 2;" in result.err
    assert "moved" not in invoke("kafka", "inspect", "-d", data, "--list").out
    (shown,) = invoke("kafka", "inspect", "-d", data, "--partition", "2").json
    assert (shown["waiting"], shown["is_served"]) == (1, False)
    assert_whole(path)
