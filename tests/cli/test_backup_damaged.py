"""Each file of a backup is lost or damaged in turn, under each command: a clear state, and a hint that mends it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filewheel import verify_backups
from tests.cli.support import Fw, Result
from tests.conftest import assert_whole


class Pair:
    """A primary that was promoted once, so that it has forks, and its backup: with a lap, a journal and a pause."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.a, self.b = Fw(top / "set" / "a"), Fw(top / "set" / "b")
        (top / "set").mkdir()
        self.b("init")
        self.b("backup", "add", self.a.wheel)
        self.a("promote", "--yes", "--wait", "0s")
        self.b("rejoin", "--yes")
        self.a("enqueue", "--in", "1h", "in a lap")
        self.a("run", "--once")
        self.a("enqueue", "--in", "1h", "in a journal")
        self.a("pause", "--topic", "x")
        self.a("replicate", "--once")
        self.keep("whole")

    def keep(self, name: str) -> None:
        shutil.copytree(self.top / "set", self.top / name, ignore=shutil.ignore_patterns("hint"))

    def restore(self, name: str) -> None:
        shutil.rmtree(self.top / "set")
        shutil.copytree(self.top / name, self.top / "set")

    def file(self, name: str) -> Path:
        return next(path for path in sorted(self.b.wheel.glob(name)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def pair(made: Pair) -> Iterator[Pair]:
    made.restore("whole")
    yield made
    shutil.rmtree(made.top / "damaged", ignore_errors=True)


def lose(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if path.suffix != ".log" else 70] ^= 1
    path.write_bytes(data)


def hint_of(result: Result) -> str:
    return result.err.rpartition("Try: ")[2].strip()


def follow(pair: Pair, hint: str) -> None:
    """Do what a hint says, as a person would."""
    if "backup remove" in hint:
        assert f"backup remove {pair.b.wheel}`, delete that directory, " in hint
        assert f"backup add {pair.b.wheel} --ship`" in hint
        pair.a("backup", "remove", pair.b.wheel)
        shutil.rmtree(pair.b.wheel)
        pair.a("backup", "add", pair.b.wheel, "--ship")
    elif "repair" in hint:
        pair.b("repair", "--yes")
    else:
        assert "replicate" in hint
    pair.a("replicate", "--once")


def assert_copy(pair: Pair) -> None:
    assert [one.state for one in verify_backups(pair.a.wheel)] == ["in step"]
    assert_whole(pair.b.wheel)
    assert {m["payload"] for m in pair.b.pending()} == {"in a lap", "in a journal"}


# The codes of `backup verify`, `repair --yes` and `promote --yes` on a backup, and the state in `backup list`.
BROKEN = 12, 14, 2, "damaged"
ROSTER = 12, 12, 12, "damaged"
CASES = {
    ("checkpoint", lose): BROKEN,
    ("checkpoint", flip): BROKEN,
    ("checkpoint*", lose): BROKEN,
    ("checkpoint*", flip): BROKEN,
    ("forks", flip): (12, 0, 2, "damaged"),
    ("roster.json", lose): ROSTER,
    ("roster.json", flip): ROSTER,
    ("wheel.json*", flip): (12, 12, 12, "damaged"),
    ("wheel.json*", lose): (3, 10, 10, "unreachable"),
    ("wheel.json", lose): (0, 0, 0, "current"),
    ("wheel.json", flip): (0, 0, 0, "current"),
    ("wheel.json.copy", flip): (0, 0, 0, "current"),
    ("laps/*.lap", lose): (12, 14, 2, "damaged"),
    ("laps/*.lap", flip): (12, 14, 0, "current"),
    ("journal/*.log", lose): (0, 0, 0, "current"),
    ("journal/*.log", flip): (12, 14, 0, "current"),
    ("checkpoint.old", flip): (0, 0, 0, "current"),
    ("ticks", lose): (0, 0, 0, "current"),
    ("ticks", flip): (0, 0, 0, "current"),
}


@pytest.mark.parametrize(("name", "how"), CASES, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_file_of_a_backup_that_is_lost_or_damaged_has_a_clear_state_and_a_command_that_mends_it(
    pair: Pair, name: str, how: Callable[[Path], None]
) -> None:
    verify, repair, promote, state = CASES[name, how]
    for path in pair.b.wheel.glob(name):
        how(path)
    pair.keep("damaged")

    # No replicator runs, so the list has something to say in any case.
    listed = pair.a("backup", "list", code=3)
    assert [line["state"] for line in listed.json] == [state]
    assert pair.a("health", "--backups", "--no-keeper", code=24).json[0]["kind"] == "backups"
    verified = pair.a("backup", "verify", code=verify)

    said = pair.b("repair", "--yes", code=repair)
    if repair == 14:
        assert "it is not repaired, but copied" in said.err
        assert f"filewheel -C {pair.a.wheel} backup verify" in said.err
    if repair in (0, 14):  # it did no harm to a copy
        pair.a("backup", "verify", code=verify if name != "wheel.json*" else 0)

    pair.restore("damaged")
    said = pair.b("promote", "--yes", "--wait", "0s", code=promote)
    if promote == 0:
        assert said.json[0]["caught_up"]
    elif state == "damaged":
        assert "--force" in said.err or "copy" in said.err

    pair.restore("damaged")
    if verify:
        follow(pair, hint_of(verified)) if verify == 12 else None
    if state == "unreachable":
        assert f"if it is lost, `filewheel -C {pair.a.wheel} backup remove {pair.b.wheel}`" in hint_of(listed)
        pair.a("backup", "remove", pair.b.wheel)
        shutil.rmtree(pair.b.wheel)
        pair.a("backup", "add", pair.b.wheel, "--ship")
    else:
        pair.a("replicate", "--once")
    if name.startswith("wheel.json") and state == "current":
        pair.b("repair", "--yes")
    if name != "checkpoint.old":
        assert_copy(pair)


@pytest.mark.parametrize("name", ["checkpoint", "forks"])
def test_a_backup_that_nobody_knows_the_bytes_of_is_promoted_by_force_and_the_old_primary_gives_the_rest(
    pair: Pair, name: str
) -> None:
    flip(pair.file(name))
    said = pair.b("promote", "--yes", "--force", "--wait", "0s")
    assert not said.json[0]["caught_up"]
    assert f"nothing was brought over from {pair.a.wheel}: `filewheel rejoin` it" in said.json[0]["notes"]
    pair.a("rejoin", "--yes")
    pair.b("run", "--once")  # the keeper makes the checkpoint again
    assert {m["payload"] for m in pair.b.pending()} == {"in a lap", "in a journal"}


def test_a_damaged_backup_is_repaired_where_its_primary_is_gone(pair: Pair) -> None:
    flip(pair.file("laps/*.lap"))
    shutil.rmtree(pair.a.wheel)
    pair.b("repair", "--yes")
    pair.b("promote", "--yes", "--wait", "0s")
    assert [m["payload"] for m in pair.b.pending()] == ["in a journal"]


def test_a_replicator_says_of_a_broken_backup_how_to_copy_it_anew(pair: Pair) -> None:
    pair.file("checkpoint").unlink()
    service = pair.a.start("replicate")
    try:
        line = next(line for line in service.stderr if "checkpoint is missing" in line)  # type: ignore[union-attr]
    finally:
        service.terminate()
        service.communicate()
    assert f"backup remove {pair.b.wheel}`, delete that directory" in line
