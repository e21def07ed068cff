"""`filewheel diff`: exit codes, text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.laps.tidy import tidy
from tests.cli.support import invoke


def wheels(tmp_path: Path) -> tuple[str, str]:
    paths = str(tmp_path / "a.wheel"), str(tmp_path / "b.wheel")
    with Wheel.create(paths[0]) as first, Wheel.create(paths[1]) as second:
        first.enqueue_many([b"x"] * 5, delay=100)
        second.add(first.list())
    return paths


def test_wheels_that_hold_the_same_end_well(tmp_path: Path) -> None:
    a, b = wheels(tmp_path)
    done = invoke("diff", a, b)
    assert (done.code, done.out) == (0, "")
    assert "both hold the same: 5 messages" in done.err


def test_wheels_that_do_not_are_told_apart_with_exit_code_three(tmp_path: Path) -> None:
    a, b = wheels(tmp_path)
    with Wheel(b) as second:
        id_ = second.enqueue(b"more", delay=5)
    done = invoke("diff", "--json", a, b)
    assert done.code == 3
    (line,) = done.out.splitlines()
    assert (json.loads(line)["id"], json.loads(line)["kind"]) == (str(id_), "only in second")
    done = invoke("diff", "--no-json", "--limit", "1", b, a)
    assert done.code == 3
    assert "only in first" in done.out
    assert "note: 1 message differs\n" in done.err


def test_a_directory_that_is_no_wheel_is_named(tmp_path: Path) -> None:
    a, _ = wheels(tmp_path)
    done = invoke("diff", a, str(tmp_path / "nothing"))
    assert done.code == 10
    assert "nothing" in done.err


@pytest.mark.damages
def test_wheels_that_are_the_same_but_for_what_cannot_be_read_end_as_damaged(tmp_path: Path) -> None:
    a, b = wheels(tmp_path)
    with Wheel(a) as first:
        first.enqueue(b"lost", delay=100_000)
    assert tidy(open_directory(a, write=True))
    assert invoke("diff", a, b).code == 3
    max(Path(a).glob("laps/*.lap")).unlink()
    done = invoke("diff", a, b)
    assert (done.code, done.out) == (12, "")
    assert f"{a}: 1 place is damaged, and left out" in done.err
    assert "both hold the same" not in done.err
