"""A broker that asks who you are (SASL, ACLs): a wrong password is named, and a forbidden target loses nothing."""

from __future__ import annotations

import re
import signal
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest

from tests.cli.support import finish, invoke, start, stopped
from tests.kafka.conftest import make_topic
from tests.kafka.reading import ANSWER_TIMEOUT_S, read
from tests.kafka.secured import Secured, as_user
from tests.support import eventually, some

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
pytest.importorskip("confluent_kafka.admin")


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
