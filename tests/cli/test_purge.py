"""`purge`: what has ended goes, what it did not reach is on stdout, and the exit code says which."""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from tests.cli.support import Fw, on_terminal
from tests.support import FakeClock

SECRET = "secret-4711"


def files_with(fw: Fw, text: str) -> list[str]:
    return [p.name for p in sorted(fw.wheel.rglob("*")) if p.is_file() and text.encode() in p.read_bytes()]


def bytes_of(fw: Fw) -> dict[str, bytes]:
    return {str(p.relative_to(fw.wheel)): p.read_bytes() for p in sorted(fw.wheel.rglob("*")) if p.is_file()}


def put_aside(fw: Fw) -> None:
    """Have bytes in quarantine that no tool can read."""
    (fw.wheel / "quarantine").mkdir(exist_ok=True)
    (fw.wheel / "quarantine" / "some-journal-0-9.bin").write_bytes(SECRET.encode())


def test_purge_takes_out_what_was_cancelled_and_keeps_the_rest(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "kept")
    fw("cancel", *fw.enqueue("--in", "1h", SECRET))
    assert files_with(fw, SECRET)
    result = fw("purge", "--json")
    assert result.json == [{"history": 0, "quarantine": 0, "unreached": []}]
    assert "purged" in result.err
    assert files_with(fw, SECRET) == []
    assert [m["payload"] for m in fw.pending()] == ["kept"]


@pytest.mark.damages
def test_what_it_cannot_reach_is_data_and_the_exit_code_is_3(fw: Fw) -> None:
    put_aside(fw)
    (kept,) = fw.enqueue("--in", "1h", SECRET)
    result = fw("purge", kept, "--json", code=3)
    (done,) = result.json[:1]
    assert [one["place"] for one in done["unreached"]] == [kept, "quarantine/some-journal-0-9.bin"]
    assert "cancel" in done["unreached"][0]["hint"]
    assert result.error["error"] == "partly"
    text = fw("purge", "--no-json", code=3)
    assert text.lines[0].startswith("quarantine/some-journal-0-9.bin: ")
    assert "filewheel purge --quarantine" in text.lines[0]
    assert files_with(fw, SECRET)


def test_bytes_in_quarantine_need_the_option_and_a_confirmation(fw: Fw) -> None:
    put_aside(fw)
    before = bytes_of(fw)
    assert "--yes" in fw("purge", "--quarantine", code=2).err
    assert bytes_of(fw) == before
    assert fw("purge", "--quarantine", "--yes").json[0]["quarantine"] == 1
    assert list((fw.wheel / "quarantine").iterdir()) == []


def test_the_history_of_the_other_messages_stays(fw: Fw) -> None:
    clock = FakeClock()
    with (
        Wheel(fw.wheel, clock=clock) as wheel,
        Keeper(fw.wheel, clock=clock, background=False, history=100) as keeper,
    ):
        ids = [wheel.enqueue(b"", topic=topic, key=key) for topic, key in (("a", None), ("b", "k"), ("ab", None))]
        for message in keeper.claim(10):
            keeper.ack(message)
        keeper.observer.publish()
    assert fw("purge", "--topic", "b").json[0]["history"] == 1
    assert fw("purge", "--key", "k").json[0]["history"] == 0
    assert fw("purge", "-", stdin=f"{ids[0]}\n").json[0]["history"] == 1
    assert fw("purge", "--topic", "a*").json[0]["history"] == 1


@pytest.mark.parametrize(
    "args",
    [
        ("--topic", "a", "--key", "b"),
        ("--key", "b", "-"),
        ("no-id",),
        ("--timeout", "-1s"),
        ("--key", ""),
        ("--topic", ""),
    ],
)
def test_a_choice_that_is_not_one_is_refused_and_nothing_is_done(fw: Fw, args: tuple[str, ...]) -> None:
    (id_,) = fw.enqueue("--in", "1h", SECRET)
    fw("cancel", id_)
    before = bytes_of(fw)
    fw("purge", *args, stdin=f"{id_}\n", code=2)
    assert bytes_of(fw) == before


def test_no_ids_on_stdin_does_not_mean_all(fw: Fw) -> None:
    fw("cancel", *fw.enqueue("--in", "1h", SECRET))
    before = bytes_of(fw)
    fw("purge", "-", stdin="", code=2)
    assert bytes_of(fw) == before


@pytest.mark.damages
def test_on_a_terminal_the_places_are_text(fw: Fw) -> None:
    put_aside(fw)
    shown = on_terminal("-C", fw.wheel, "purge")
    assert shown.code == 3
    assert "quarantine/some-journal-0-9.bin" in shown.out
    assert "1 place could not be reached" in shown.out


def test_without_a_wheel_nothing_is_made(tmp_path: Path) -> None:
    missing = Fw(tmp_path / "none")
    missing("purge", code=10)
    assert list(tmp_path.iterdir()) == []
