"""`filewheel kafka`: the topics and a node, on a real broker; errors without one."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.support import environment, finish, invoke, on_terminal, start, stopped
from tests.project.test_docs import filewheel, run_blocks, shell
from tests.support import REPO, eventually, some

__all__ = ["filewheel", "shell"]

PYTHON = str(REPO / ".venv" / "bin" / "python")


def examples(*path: str) -> list[str]:
    lines = [line.strip()[2:] for line in invoke(*path, "--help").out.splitlines() if line.strip().startswith("$ ")]
    assert lines
    return lines


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture
def name(kafka: str) -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def given(line: str, bootstrap: str, topic: str, data: Path) -> list[str]:
    """Return the words of an example, with the test's cluster, topic and directory."""
    words = {"localhost:9092": bootstrap, "delays": topic, "/var/lib/delays": str(data), "data": str(data)}
    return [words.get(word, word) for word in shlex.split(line)[1:]]


def test_the_examples_make_topics_and_a_second_run_finds_nothing_to_do(kafka: str, name: str, tmp_path: Path) -> None:
    first, second = examples("kafka", "init")
    made = [json.loads(line) for line in invoke(*given(first, kafka, name, tmp_path)).out.splitlines()]
    assert [(m["topic"], m["partitions"], m["is_new"]) for m in made] == [
        (name, 12, True), (f"{name}.cursor", 12, True), (f"{name}.dlt", 1, True)
    ]  # fmt: skip
    again = invoke(*given(second, kafka, name, tmp_path))
    assert again.code == 0
    assert not any(json.loads(line)["is_new"] for line in again.out.splitlines())


def test_wrong_settings_are_named_and_changed_on_request(kafka: str, topic: Callable[..., str]) -> None:
    name = topic(3, **{"cleanup.policy": "compact"})
    result = invoke("kafka", "init", "--bootstrap", kafka, "--topic", name)
    assert result.code == 3
    report = json.loads(result.out.splitlines()[0])
    assert report["wrong"]["cleanup.policy"] == {"is": "compact", "needs": "delete"}
    assert "--alter changes them" in result.err
    assert json.loads(result.out.splitlines()[1])["partitions"] == 3
    changed = invoke("kafka", "init", "--bootstrap", kafka, "--topic", name, "--alter")
    assert changed.code == 0
    assert "cleanup.policy" in json.loads(changed.out.splitlines()[0])["altered"]
    again = invoke("kafka", "init", "--bootstrap", kafka, "--topic", name)
    assert (again.code, again.err) == (0, "")
    other = invoke("kafka", "init", "--bootstrap", kafka, "--topic", name, "--partitions", "2")
    assert other.code == 0
    assert f"{name} has 3 partitions, not 2: --partitions is for a topic that is made" in other.err
    short = invoke("kafka", "init", "--bootstrap", kafka, "--topic", name, "--replication", "2", "--retention", "1h")
    assert short.code == 0
    assert f"{name} has 1 copy of a partition, not 2: --replication is for a topic that is made" in short.err
    assert f"{name} keeps its records for ever, longer than the 3600000 ms asked for, and stays so" in short.err
    assert json.loads(short.out.splitlines()[0])["kept"] == {"retention.ms": {"is": "-1", "asked": "3600000"}}


@pytest.mark.parametrize("example", [0, 1], ids=["at-least-once", "exactly-once"])
def test_a_node_fires_a_record_when_it_is_due_and_ends_with_0_at_a_signal(
    kafka: str, name: str, topic: Callable[..., str], tmp_path: Path, example: int
) -> None:
    from confluent_kafka import Consumer, Producer

    target = topic()
    assert invoke("kafka", "init", "--bootstrap", kafka, "--topic", name, "--partitions", "2").code == 0
    words = given(examples("kafka", "run")[example], kafka, name, tmp_path / "data")
    log = tmp_path / "log"
    with log.open("w") as stderr:
        command = [PYTHON, "-m", "cli", *words, "--listen", "127.0.0.1:0"]
        node = subprocess.Popen(command, cwd=REPO, env=environment(), stderr=stderr)
    try:
        producer = Producer({"bootstrap.servers": kafka})
        due_ms = round(time.time() * 1000) + 2000
        headers = [("filewheel-due-ms", str(due_ms)), ("scheduler-target-topic", target), ("user", "x")]
        producer.produce(name, b"later", key=b"k", headers=headers)
        assert producer.flush(30) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": kafka, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )  # fmt: skip
        consumer.subscribe([target])
        found = []
        eventually(lambda: found.extend(m for m in consumer.consume(10, 0.2) if not m.error()) or found, timeout_s=60)
        assert time.time() * 1000 >= due_ms
        consumer.close()
        assert [message.value() for message in found] == [b"later"]
        assert ("user", b"x") in found[0].headers()
        (url,) = re.findall(r"/health are at (http\S+)", log.read_text())
        health, metrics = read(f"{url}/health"), read(f"{url}/metrics")
        node.send_signal(signal.SIGTERM)
        node.wait(60)
        said = log.read_text()
    finally:
        node.kill()
        node.wait()
    assert node.returncode == 0, said
    assert "this node fires it" in said
    assert "has stopped" in said
    assert json.loads(health)["status"] == "ok"
    assert re.search(rf'filewheel_kafka_in_total{{topic="{name}",node="[^"]+",outcome="delayed"}} 1\n', metrics)


def test_every_block_of_the_page_on_kafka_runs(kafka: str, tmp_path: Path, shell: dict[str, str]) -> None:
    text = (REPO / "docs" / "kafka.md").read_text(encoding="utf-8")
    text = text.replace("localhost:9092", kafka)
    for word in ("delays", "mails", "reader"):  # other tests share the broker
        text = re.sub(rf"\b{word}\b", f"{word}-{uuid.uuid4().hex[:8]}", text)
    run_blocks(text, tmp_path, shell)


def test_a_cluster_that_does_not_answer_and_a_missing_topic_are_named(kafka: str, name: str, tmp_path: Path) -> None:
    result = invoke("kafka", "run", "--bootstrap", kafka, "--topic", name, "--data", tmp_path)
    assert result.code == 1
    assert f"there is no topic {name}" in result.err
    assert f"filewheel kafka init --bootstrap {kafka} --topic {name}" in result.err
    assert invoke("kafka", "init", "--bootstrap", kafka, "--topic", name, "-X", "nonsense").code == 2
    assert invoke("kafka").code == 2


def test_records_are_produced_replaced_and_cancelled_and_the_status_names_owner_and_problem(
    kafka: str, name: str, tmp_path: Path
) -> None:
    place = ("-b", kafka, "-t", name)
    produce = ("kafka", "produce", *place, "--in", "1h", "--target", "mails")
    assert invoke("kafka", "init", *place, "--partitions", "2").code == 0
    unserved = invoke("kafka", "status", *place)
    assert unserved.code == 3
    assert [r["problem"][:8] for r in unserved.json] == ["no owner", "no owner"]
    assert "no node of group" in invoke("kafka", "cancel", *place, "k").err
    node = start("kafka", "run", *place, "-d", tmp_path / "data", "--keyed", "--node", "n1")
    with stopped(node):
        one = invoke(*produce, "--key", "k", "--header", "a=b", "--target-key", "t", "one")
        assert one.code == 0, one
        partition = int(one.lines[0].split("-")[-2])
        assert one.lines == [f"{name}-{partition}-0"]
        ids = invoke(*produce, "--lines", "--json", stdin="x\ny\n\n").json
        assert [i["topic"] for i in ids] == [name] * 3
        batch = tmp_path / "batch.jsonl"
        batch.write_text('{"payload": "two", "key": "k", "at": "2040-01-01T00:00Z"}\n{"payload": "z", "in": 3600}\n')
        assert len(invoke(*produce[:5], *produce[5:], "--batch", batch).lines) == 2

        def waiting(count: int) -> bool:
            found = invoke("kafka", "status", *place).json
            return sum(r["waiting"] or 0 for r in found) == count and all(r["state"] == "active" for r in found)

        eventually(lambda: waiting(5), timeout_s=240)  # `two` replaced `one`
        cancelled = invoke("kafka", "cancel", *place, "k")
        assert cancelled.code == 0, cancelled
        eventually(lambda: waiting(4), timeout_s=240)
        seen = invoke("kafka", "status", *place)
        assert seen.code == 0, seen
        assert {(r["owner"], r["data"], r["lag"], r["standbys"]) for r in seen.json} == {
            ("n1", str(tmp_path / "data"), 0, 0)
        }
        shown = on_terminal("kafka", "status", *place).out
        assert re.search(r"PARTITION\s+OWNER\s+STATE\s+WAITING", shown)
        assert max(len(line) for line in shown.splitlines()) <= 80
        node.send_signal(signal.SIGTERM)
        assert finish(node, timeout=90).code == 0
    wrong = invoke("kafka", "status", "-b", kafka, "-t", f"{name}x")
    assert wrong.code == 1
    assert f"there is no topic {name}x\nTry: --topic {name}" in wrong.err
    missing = invoke("kafka", "produce", "-b", kafka, "-t", f"{name}x", "--in", "1", "--target", "mails", "x")
    assert missing.code == 1
    assert f"filewheel kafka init --bootstrap {kafka} --topic {name}x" in missing.err


def test_dead_letters_are_listed_with_their_reasons_the_last_ones_last(kafka: str, name: str) -> None:
    from confluent_kafka import Producer

    place = ("-b", kafka, "-t", name)
    assert invoke("kafka", "dead", *place).code == 1
    assert invoke("kafka", "init", *place, "--partitions", "1").code == 0
    empty = invoke("kafka", "dead", *place)
    assert (empty.code, empty.out) == (0, "")
    producer = Producer({"bootstrap.servers": kafka})
    for n in range(5):
        headers = [("filewheel-error", b"reason %d" % n), ("filewheel-origin", b"%b-0-%d" % (name.encode(), n))]
        producer.produce(f"{name}.dlt", b"v%d" % n, headers=[*headers, ("scheduler-target-topic", b"mails")])
        assert producer.flush(30) == 0
    found = invoke("kafka", "dead", *place, "--limit", "3").json
    assert [(one["id"], one["reason"], one["payload"], one["target"]) for one in found] == [
        (f"{name}-0-{n}", f"reason {n}", f"v{n}", "mails") for n in (2, 3, 4)
    ]
    shown = on_terminal("kafka", "dead", *place).out
    assert "REASON" in shown
    assert "reason 4" in shown


@pytest.mark.parametrize("keyed", some([True, False], one_of=2), ids=lambda keyed: "keyed" if keyed else "plain")
def test_dead_letters_are_revived_by_id_or_all_and_listed_no_more(
    kafka: str, name: str, tmp_path: Path, keyed: bool
) -> None:
    from confluent_kafka import Producer

    from tests.kafka.reading import read as records_of

    place = ("-b", kafka, "-t", name)
    target = f"{name}-target"

    def sent_v1() -> bool:
        """Revive it once more if it is dead again: for a moment the node's client remembers that there is no target."""
        for one in invoke("kafka", "dead", *place).json:
            if one["payload"] == "v1":
                assert invoke("kafka", "dead", *place, "--revive", one["id"]).code == 0
        return [m.value() for m in records_of(kafka, target)] == [b"v1"]

    assert invoke("kafka", "init", *place, "--partitions", "1").code == 0
    mode = ["--keyed"] * keyed
    node = start("kafka", "run", *place, *mode, "-d", tmp_path / "data", "--on-target-error", "dead-letter")
    with stopped(node):
        producer = Producer({"bootstrap.servers": kafka})
        for n in range(3):
            headers = [("filewheel-due-ms", b"0"), ("scheduler-target-topic", target.encode()), ("kept", b"%d" % n)]
            producer.produce(name, b"v%d" % n, b"key-%d" % n, headers=headers)
        assert producer.flush(30) == 0
        listed = eventually(lambda: len(found := invoke("kafka", "dead", *place).json) == 3 and found, timeout_s=90)
        assert [one["place"] for one in listed] == [f"{name}.dlt-0-{n}" for n in range(3)]
        eventually(lambda: invoke("kafka", "status", *place).json[0]["seen_s"] is not None, timeout_s=60)
        wrong = invoke("kafka", "dead", *place, "--revive", "delays-9-9")
        assert (wrong.code, wrong.out) == (4, "")
        assert "no dead letter has the id delays-9-9" in wrong.err
        for words in (["--all"], ["x"], ["--revive"], ["--revive", "--all", "x"]):
            assert invoke("kafka", "dead", *place, *words).code == 2
        assert invoke("kafka", "init", "-b", kafka, "-t", target, "--partitions", "1").code == 0  # any topic will do
        (one,) = invoke("kafka", "dead", *place, "--revive", listed[1]["id"]).json
        assert one["payload"] == "v1"
        eventually(sent_v1, timeout_s=60)
        assert [one["payload"] for one in invoke("kafka", "dead", *place).json] == ["v0", "v2"]
        assert len(invoke("kafka", "dead", *place, "--revive", "--all").json) == 2
        assert invoke("kafka", "dead", *place).out == ""
        assert invoke("kafka", "dead", *place, "--revive", "--all").out == ""
        eventually(lambda: len(records_of(kafka, target)) == 3, timeout_s=60)
        for message in records_of(kafka, target):
            headers = dict(message.headers())
            assert headers["kept"] == b"%d" % int(message.value()[1:])
            assert headers["scheduler-key"] == (None if keyed else b"key-" + headers["kept"])
            assert not {"filewheel-error", "filewheel-origin", "filewheel-revived"} & headers.keys()


def test_a_dry_run_counts_what_other_options_would_deliver_again(kafka: str, name: str, tmp_path: Path) -> None:
    from tests.kafka.reading import read as records_of

    place = ("-b", kafka, "-t", name)
    target = f"{name}-target"
    for made in (name, target):
        assert invoke("kafka", "init", "-b", kafka, "-t", made, "--partitions", "1").code == 0
    run = ["kafka", "run", *place, "-d", tmp_path / "data"]
    node = start(*run)
    with stopped(node):
        assert invoke("kafka", "produce", *place, "--in", "1d", "--target", target, "waits").code == 0
        for n in range(4):
            assert invoke("kafka", "produce", *place, "--in", "0", "--target", target, f"v{n}").code == 0
        eventually(lambda: len(records_of(kafka, target)) == 4, timeout_s=90)
        eventually(lambda: invoke("kafka", "status", *place).json[0]["waiting"] == 1, timeout_s=60)
        node.send_signal(signal.SIGTERM)
        assert finish(node, timeout=90).code == 0
    assert invoke(*run, "--dry-run").code == 2
    counted = invoke(*run, "--horizon", "2d", "--accept-options", "--dry-run")
    assert counted.json == [{"partition": 0, "low": 0, "ingested": 5, "waiting": 1, "again": 4}]
    assert "delivers up to 4 records a second time" in on_terminal(*run, "--accept-options", "--dry-run").out
    refused = invoke(*run, "--horizon", "2d")
    assert refused.code != 0
    assert "delivers up to 5 records of this partition a second time" in refused.err
