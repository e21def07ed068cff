"""A broker that asks who you are (SASL, ACLs): each role runs with the rights that the pages give it, and no more.

The tables of the pages are what is granted here. A wrong password is named, and a forbidden target loses nothing. It is
one file, so one worker of a run starts the broker.
"""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from filewheel import Retry
from filewheel.kafka import KafkaScheduler
from tests.cli.support import finish, invoke, start, stopped
from tests.kafka.conftest import make_topic
from tests.kafka.reading import ANSWER_TIMEOUT_S, read
from tests.kafka.secured import Secured, as_user
from tests.support import REPO, eventually, some

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
pytest.importorskip("confluent_kafka.admin")

MODES = some([True, False], one_of=2)
BOTH = pytest.mark.parametrize("exactly_once", MODES, ids=lambda once: "exactly-once" if once else "at-least-once")
KINDS = {"topic": "TOPIC", "group": "GROUP", "transactional id": "TRANSACTIONAL_ID"}
ROW = re.compile(r"^\|([^|]*)\| (topic|group|transactional id) \| ([^|]+) \| ([A-Z_, ]+) \|$", re.MULTILINE)


@pytest.mark.parametrize(
    "verb",
    [["init"], ["run", "-d", "DATA"], ["status"], ["dead"], ["produce", "--in", "1s", "--target", "mails", "x"]],
    ids=lambda verb: verb[0],
)
def test_a_wrong_password_is_named_at_once_and_not_taken_for_a_broker_that_is_away(
    secured: Secured, tmp_path: Path, verb: list[str]
) -> None:
    words = [str(tmp_path / "data") if word == "DATA" else word for word in verb]
    result = invoke("kafka", *words[:1], *secured.place("delays", "ann", "wrong"), *words[1:])
    assert result.code == 1
    assert f"Error: {secured.bootstrap}: SASL authentication error: Authentication failed: Invalid user" in result.err
    assert "Try: check sasl.mechanism, sasl.username and sasl.password" in result.err
    assert "waiting for a broker" not in result.err
    assert not (tmp_path / "data").exists()


def test_a_user_without_rights_hears_what_is_not_allowed(secured: Secured) -> None:
    name = f"t-{uuid.uuid4().hex[:12]}"
    made = invoke("kafka", "init", *secured.place(name, "ann"))
    assert made.code == 1
    assert "Authorization failed" in made.err
    assert "access rights" in made.err
    assert name not in secured.admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics


def service_of_ann(secured: Secured) -> tuple[str, str, str]:
    """Make topics of a service that ann may run, a target that she may write, and one that she may not."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    assert invoke("kafka", "init", *secured.place(name, "root"), "--partitions", "2").code == 0
    opened, closed = (make_topic(secured.admin, f"{kind}-{name}") for kind in ("open", "closed"))
    secured.allow("ann", "TOPIC", name, "READ", "WRITE", "DESCRIBE", "DESCRIBE_CONFIGS", prefixed=True)
    secured.allow("ann", "TOPIC", opened, "WRITE", "DESCRIBE")
    for kind in ("GROUP", "TRANSACTIONAL_ID"):
        secured.allow(
            "ann", kind, f"filewheel-{name}", "READ" if kind == "GROUP" else "WRITE", "DESCRIBE", prefixed=True
        )
    return name, opened, closed


def produce(secured: Secured, name: str, opened: str, closed: str) -> None:
    """Send to both partitions; in the first, a record for the closed target comes before one for the open one."""
    sender = confluent_kafka.Producer({**secured.config, "linger.ms": 0})
    due_ms = round(time.time() * 1000)
    for n, (partition, target) in enumerate([(0, closed), (0, opened), (1, opened)]):
        headers = [("filewheel-due-ms", str(due_ms + n)), ("scheduler-target-topic", target)]
        sender.produce(name, b"%d" % n, partition=partition, headers=headers)
    assert sender.flush(ANSWER_TIMEOUT_S) == 0


def health(log: Path) -> str:
    (url,) = re.findall(r"/health are at (http\S+)", log.read_text())
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=60) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as failing:
        with failing:
            return str(failing.read(), "utf-8")


@pytest.mark.parametrize(
    ("policy", "mode"),
    some(
        [("retry", ["--exactly-once"]), ("retry", []), ("dead-letter", ["--exactly-once"]), ("put-back", [])], one_of=2
    ),
    ids=lambda value: value if isinstance(value, str) else "exactly once" if value else "at least once",
)
def test_a_target_that_the_user_may_not_write_follows_the_policy_and_loses_nothing(
    secured: Secured, tmp_path: Path, policy: str, mode: list[str]
) -> None:
    name, opened, closed = service_of_ann(secured)
    produce(secured, name, opened, closed)
    log = tmp_path / "log"
    options = [*mode, "--on-target-error", policy, "--listen", "127.0.0.1:0", "-d", tmp_path / "data"]
    with log.open("w") as stderr:
        node = start("kafka", "run", *secured.place(name, "ann"), *options, stderr=stderr)
    with stopped(node):
        eventually(lambda: b"2" in secured.values(opened), timeout_s=120)
        if policy == "retry":
            eventually(lambda: f"{closed}: " in health(log), timeout_s=60)
            assert '"target"' in health(log)
            assert not mode or secured.values(opened) == [b"2"]  # the transaction with the other record was aborted
            assert "authorization failed" in log.read_text().lower()
        elif policy == "dead-letter":
            (dead,) = eventually(lambda: read(secured.bootstrap, f"{name}.dlt", **as_user("root")), timeout_s=60)
            assert dead.value() == b"0"
            assert "authorization failed" in dict(dead.headers())["filewheel-error"].decode().lower()
        assert secured.values(closed) == []
        secured.allow("ann", "TOPIC", closed, "WRITE", "DESCRIBE")
        eventually(lambda: secured.values(opened) == [b"1", b"2"], timeout_s=120)
        if policy != "dead-letter":
            eventually(lambda: secured.values(closed) == [b"0"], timeout_s=120)
            assert secured.values(f"{name}.dlt") == []
        node.send_signal(signal.SIGTERM)
        assert finish(node, timeout=90).code == 0, log.read_text()


# -- the tables of the pages ---------------------------------------------------------------------------------------


def rights(page: str) -> dict[str, list[tuple[str, str, list[str]]]]:
    """Return the rows of a page's table of rights: who → what kind, its names, the operations."""
    found: dict[str, list[tuple[str, str, list[str]]]] = {}
    who = ""
    for first, kind, names, operations in ROW.findall((REPO / "docs" / page).read_text(encoding="utf-8")):
        who = first.strip() or who
        found.setdefault(who, []).append((KINDS[kind], names, operations.split(", ")))
    return found


@dataclass
class Place:
    """The topics of one test, and who may do what with them."""

    secured: Secured
    name: str
    target: str

    def grant(self, user: str, who: str, *, page: str = "kafka.md", **more: str) -> None:
        """Give a user the rights of a row, on the topics of this test instead of those of the page."""
        for kind, names, operations in rights(page)[who]:
            for name in re.findall(r"`([^`]+)`|each target", names):
                real = self.target if not name else re.sub(r"\bdelays\b", self.name, name)
                for old, new in more.items():
                    real = re.sub(rf"\b{old}\b", new, real)
                self.secured.allow(user, kind, real, *operations, prefixed="anything behind" in names)

    def run(self, user: str, verb: str, *words: str) -> str:
        """Run a verb to its end; return what it printed."""
        result = invoke("kafka", verb, *self.secured.place(self.name, user), *words)
        assert result.code == 0, result.err
        assert "uthoriz" not in result.err
        return str(result.out)

    def status(self) -> list[dict[str, Any]]:
        """Return what the nodes have said of each partition, to a user who may do anything."""
        return [json.loads(line) for line in self.run("root", "status").splitlines()]

    @contextmanager
    def running(self, user: str, verb: str, *words: str, log: Path) -> Iterator[None]:
        """Run a verb until the end of the block, at which its log has no word of a missing right."""
        with log.open("w") as stderr:
            process = start("kafka", verb, *self.secured.place(self.name, user), *words, stderr=stderr)
        with stopped(process):
            yield
            process.send_signal(signal.SIGTERM)
            assert finish(process, timeout=90).code == 0, log.read_text()
        assert "uthoriz" not in log.read_text(), log.read_text()


@pytest.fixture
def here(secured: Secured) -> Iterator[Place]:
    """A service whose topics nobody has made yet, and a target."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    yield Place(secured, name, make_topic(secured.admin, f"target-of-{name}"))
    secured.forbid_all()


def test_the_pages_have_a_row_for_each_role() -> None:
    assert len(rights("kafka.md")["`run`"]) == 4
    assert set(rights("kafka.md")) == {
        "`init`", "`init --levels`", "`run`", "`run --exactly-once`, in addition", "`levels`",
        "`produce`, `DelayProducer`", "`cancel`", "`status`", "`dead`", "`dead --revive`, in addition",
        "`run --dry-run`",
    }  # fmt: skip
    assert set(rights("kafka-scheduler.md")) == {
        "`make_topics`", "a program that enqueues", "a worker", "a worker, `exactly_once`, in addition",
        "`dead --calls`", "`dead --calls --revive`, in addition",
    }  # fmt: skip


@BOTH
def test_topics_are_made_records_sent_delivered_and_looked_at_with_the_rights_of_the_page(
    here: Place, tmp_path: Path, exactly_once: bool
) -> None:
    here.grant("maker", "`init`")
    assert '"is_new": true' in here.run("maker", "init", "--partitions", "1")
    here.secured.grow(here.name, 2)
    assert '"added": 1' in here.run("maker", "init", "--retention", "30d", "--alter")
    here.grant("node", "`run`")
    if exactly_once:
        here.grant("node", "`run --exactly-once`, in addition")
    here.grant("sender", "`produce`, `DelayProducer`")
    mode = ["--exactly-once"] * exactly_once
    more = ["--keyed", "--standby", "all", "-d", str(tmp_path / "data")]
    with here.running("node", "run", *mode, *more, log=tmp_path / "log"):
        here.run("sender", "produce", "--in", "0", "--target", here.target, "--key", "a", "x")
        eventually(lambda: here.secured.values(here.target) == [b"x"], timeout_s=90)
        here.run("sender", "produce", "--in", "1d", "--target", here.target, "--key", "b", "later")
        here.secured.put(here.name, b"undeliverable")
        eventually(lambda: any(one["seen_s"] is not None for one in here.status()), timeout_s=90)  # the note: keyed
        here.grant("operator", "`cancel`")
        assert here.run("operator", "cancel", "b")
        here.secured.forbid_all("operator")
        here.grant("operator", "`status`")
        eventually(lambda: invoke("kafka", "status", *here.secured.place(here.name, "operator")).out, timeout_s=60)
        here.secured.forbid_all("operator")
        here.grant("operator", "`dead`")
        eventually(lambda: "undeliverable" in here.run("operator", "dead"), timeout_s=60)
        here.grant("operator", "`dead --revive`, in addition")
        assert "undeliverable" in here.run("operator", "dead", "--revive", "--all")
        here.secured.forbid_all("operator")
        here.grant("operator", "`run --dry-run`")
        here.run("operator", "run", "-d", str(tmp_path / "none"), "--accept-options", "--dry-run")


def test_levels_forward_with_the_rights_of_the_page(here: Place, tmp_path: Path) -> None:
    here.grant("maker", "`init --levels`")
    assert '"is_new": true' in here.run("maker", "init", "--levels", "1s", "--partitions", "1")
    here.run("maker", "init", "--levels", "1s", "--partitions", "1", "--retention", "30d", "--alter")
    here.grant("node", "`levels`")
    with here.running("node", "levels", "--levels", "1s", "--default-target", here.target, log=tmp_path / "log"):
        here.secured.put(f"{here.name}.1s", b"x")
        eventually(lambda: here.secured.values(here.target) == [b"x"], timeout_s=90)


@BOTH
def test_calls_are_enqueued_run_retried_and_given_up_with_the_rights_of_the_page(
    here: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture, exactly_once: bool
) -> None:
    calls = f"{here.name}-calls"

    def grant(user: str, who: str) -> None:
        here.grant(user, who, page="kafka-scheduler.md", calls=calls, jobs=here.name)

    def scheduler_of(user: str, **more: Any) -> KafkaScheduler:
        config = as_user(user)
        made = KafkaScheduler(here.secured.bootstrap, topic=here.name, calls=calls, keyed=True, config=config, **more)

        @made.on("fails", retry=Retry(limit=1, delay_s=0.1))
        def fails() -> None:
            ran.append("fails")
            raise ValueError

        @made.every(3600, name="hourly")
        def hourly() -> None:
            """Never in this test."""

        return made

    def of_calls(verb: str, *words: str) -> str:
        return Place(here.secured, calls, here.target).run("operator", verb, *words)

    ran: list[str] = []
    here.run("root", "init", "--partitions", "1")
    grant("maker", "`make_topics`")
    assert [report.is_new for report in scheduler_of("maker").make_topics(partitions=2)] == [True, True]
    here.grant("node", "`run`")
    here.secured.allow("node", "TOPIC", calls, "WRITE")  # a target of the delay service
    grant("sender", "a program that enqueues")
    grant("worker", "a worker")
    if exactly_once:
        grant("worker", "a worker, `exactly_once`, in addition")
    worker = scheduler_of("worker", session_s=6, **({"exactly_once": True, "name": "w"} if exactly_once else {}))
    sender = scheduler_of("sender")
    with here.running("node", "run", "--keyed", "-d", str(tmp_path / "data"), log=tmp_path / "log"), worker:
        sender.enqueue("fails", [])
        sender.enqueue("fails", [], delay=0.2)
        eventually(lambda: len(ran) == 4, timeout_s=90)
        eventually(lambda: len(here.secured.values(f"{calls}.dead")) == 2, timeout_s=90)
        grant("operator", "`dead --calls`")
        letters = [json.loads(line) for line in of_calls("dead", "--calls").splitlines()]
        assert [(one["reason"], one["target"]) for one in letters] == [("ValueError (after 2 attempts)", calls)] * 2
        grant("operator", "`dead --calls --revive`, in addition")
        of_calls("dead", "--calls", "--revive", letters[0]["id"])
        eventually(lambda: len(ran) == 6, timeout_s=90)
        eventually(lambda: len(of_calls("dead", "--calls").splitlines()) == 2, timeout_s=90)
    sender.stop()
    assert "uthoriz" not in caplog.text
