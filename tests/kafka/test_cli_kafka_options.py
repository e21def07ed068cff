"""Where the options of `filewheel kafka` come from: the command line, variables, the file of --config. No broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli_support import Result, invoke

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
