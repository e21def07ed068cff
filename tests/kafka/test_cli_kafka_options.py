"""Where the options of `filewheel kafka` come from: the command line, variables, the file of --config. No broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Result, invoke

FILE = """
bootstrap = "file:9092"
topic = "of-the-file"
partitions = 3
retention = "14d"
alter = true
exactly-once = true

[properties]
security.protocol = "SASL_SSL"
"sasl.username" = "ann"
"sasl.password" = "hush"
"enable.ssl.certificate.verification" = false
"""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `kafka init` asks the library for."""
    found: dict[str, Any] = {}

    def make_topics(config: dict[str, str], policy: Any, **options: Any) -> list[Any]:
        found.update(options, config=config, topic=policy.topic)
        return []

    monkeypatch.setattr("cli.commands.kafka.init.make_topics", make_topics)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kafka.toml"
    path.write_text(FILE)
    return path


def init(*args: object, **env: str) -> Result:
    return invoke("kafka", "init", *args, env=env)


def test_a_file_sets_options_and_settings_of_the_client(file: Path, seen: dict[str, Any]) -> None:
    assert init("-c", file).code == 0
    assert seen["topic"] == "of-the-file"
    assert seen["partitions"] == 3
    assert seen["retention_s"] == 14 * 86400
    assert seen["alter"] is True
    assert seen["config"] == {
        "bootstrap.servers": "file:9092",
        "security.protocol": "SASL_SSL",
        "sasl.username": "ann",
        "sasl.password": "hush",
        "enable.ssl.certificate.verification": "false",
    }


def test_the_command_line_counts_before_the_variable_and_the_variable_before_the_file(
    file: Path, seen: dict[str, Any]
) -> None:
    env = {"FILEWHEEL_KAFKA_TOPIC": "variable", "FILEWHEEL_KAFKA_PARTITIONS": "4", "FILEWHEEL_KAFKA_CONFIG": str(file)}
    assert init("--partitions", "5", **env).code == 0
    assert (seen["config"]["bootstrap.servers"], seen["topic"], seen["partitions"]) == ("file:9092", "variable", 5)


def test_a_property_of_the_command_line_replaces_the_same_one_of_the_file(file: Path, seen: dict[str, Any]) -> None:
    assert init("-c", file, "-X", "sasl.username=bob", "-X", "client.id=a=b").code == 0
    assert seen["config"]["sasl.username"] == "bob"
    assert seen["config"]["sasl.password"] == "hush"
    assert seen["config"]["client.id"] == "a=b"


def test_properties_of_a_variable_are_separated_by_spaces(seen: dict[str, Any]) -> None:
    env = {"FILEWHEEL_KAFKA_PROPERTY": "sasl.username=ann sasl.password=hush"}
    assert init("-b", "x:1", "-t", "t", **env).code == 0
    assert seen["config"] == {"sasl.username": "ann", "sasl.password": "hush", "bootstrap.servers": "x:1"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('topics = "a"', "no option is called 'topics'\nTry: topic"),
        ("zzzz = 1", "no option is called 'zzzz'\nTry: `filewheel kafka init --help`"),
        ('alter = "yes"', "alter is true or false"),
        ("topic = true", "topic is a text or a number"),
        ("topic = [1]", "topic is a text or a number"),
        ('retention = "long"', "'long'"),
        ("partitions = 0", "0 is not in the range"),
        ("topic = ", "Invalid value"),
        ("properties = 5", "properties is a table"),
        ("[properties]\na = []", "a is a text or a number"),
    ],
)
def test_a_wrong_file_is_named_with_the_key(text: str, said: str, tmp_path: Path, seen: dict[str, Any]) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    result = init("-b", "x:1", "-c", path, "-t", "t") if "topic" not in text else init("-b", "x:1", "-c", path)
    assert result.code == 2
    assert said in result.err
    assert not seen


def test_a_missing_file_and_one_that_is_no_text_are_errors(tmp_path: Path, seen: dict[str, Any]) -> None:
    missing = init("-c", tmp_path / "none.toml")
    assert missing.code == 2
    assert "there is no such file\nTry: a file of your own with a line for each option, as topic" in missing.err
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    assert "not UTF-8" in init("-c", tmp_path / "bytes.toml").err
    assert init("-c", tmp_path).code == 1
    assert not seen


def test_a_property_without_a_value_is_refused_and_not_printed(seen: dict[str, Any]) -> None:
    result = init("-b", "x:1", "-t", "t", "-X", "secret-of-mine")
    assert result.code == 2
    assert "secret-of-mine" not in result.err
    assert "-X takes KEY=VALUE" in result.err
    assert not seen


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (["--in", "5m"], None, "where to? Give --target"),
        (["--target", "m"], None, "when? Give --in DUR or --at TIME"),
        (["--in", "1", "--at", "09:00", "--target", "m", "x"], None, "--in or --at, not both"),
        (["--in", "1", "--target", "m", "--lines", "--batch", "-"], "", "--lines or --batch, not both"),
        (["--in", "1", "--target", "m", "--lines", "x"], "", "leave BODY out"),
        (["--in", "1", "--target", "m", "--lines", "--key", "k"], "", "--key and --target-key are for one record"),
        (["--in", "1", "--target", "m"], "", "BODY is missing, and stdin is empty"),
        (["--in", "1", "--target", "a b", "x"], None, "target is the name of a topic"),
        (["--in", "1", "--target", "t", "x"], None, "which the service itself reads"),
        (["--in", "2d", "--horizon", "1d", "--target", "m", "x"], None, "the horizon is 86400 s"),
        (["--batch", "-"], '{"payload": "x", "in": 1}', "line 1: no target; nothing was sent"),
        (["--batch", "-"], '{"payload": "x", "target": "m"}', "line 1: no due time; nothing was sent"),
        (["--batch", "-"], '\n{"target": "m", "in": 1}', "line 2: the key 'payload' is missing"),
        (["--batch", "-"], '{"payload": "x", "target": 5, "in": 1}', "line 1: target is the name of a topic"),
        (["--batch", "-"], '{"payload": "x", "target": "m", "in": "x"}', "line 1: 'x' is not a duration"),
        (["--batch", "-"], '{"payload": "x", "target": "m", "in": true}', "line 1: 'in' is a text"),
        (["--batch", "-"], '{"payload": "x", "target": "m", "in": 1, "at": "now"}', "line 1: give one of in, at"),
        (["--batch", "-"], '{"payload": "x", "target": "m", "due_us": 1.5}', "line 1: 'due_us' is microseconds"),
        (["--batch", "-"], '{"payload": "x", "target": "m", "in": 1, "key": 5}', "line 1: key is text or bytes"),
        (["--batch", "-"], '{"payload": "x", "target": "m", "in": 1, "headers": 5}', "line 1: headers are a dict"),
        (["--batch", "-"], '{"payload": "x", "to": "m", "in": 1}', "line 1: unknown key 'to'"),
        (["--batch", "-"], "nonsense", "line 1: "),
    ],
)
def test_wrong_words_and_lines_of_produce_are_named_before_a_broker_is_asked(
    words: list[str], stdin: str | None, said: str
) -> None:
    result = invoke("kafka", "produce", "-b", "localhost:1", "-t", "t", *words, stdin=stdin)
    assert result.code == 2, result
    assert said in result.err


def test_a_batch_file_that_is_missing_is_named(tmp_path: Path) -> None:
    result = invoke("kafka", "produce", "-b", "localhost:1", "-t", "t", "--batch", tmp_path / "none")
    assert result.code == 1
    assert f"{tmp_path / 'none'}: no such file" in result.err
