"""Ctrl-C before each line of a flush, and before each line that ends a writer; Ctrl-C while a segment is made.

A flush is tested up to the lines that end it. Between the last of these and the one that notes the end, the interpreter
looks at no signal.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from filewheel import Wheel
from filewheel.disk.disk import OsDisk
from filewheel.format.settings import Sync
from filewheel.journal.appender import Appender
from filewheel.journal.writer import Writer
from tests.support import can_be_signalled, interrupted, open_below


@pytest.mark.parametrize("line", range(1, 13))
def test_an_interrupt_before_each_line_of_a_flush_leaves_no_flush_that_others_wait_for(
    wheel_dir: Path, line: int
) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"first", sync="never")
        assert wheel._journal is not None
        appender = wheel._journal.appender
        with interrupted({Appender.flush_to.__code__}.__contains__, line):
            appender.flush_to(appender.written)
        done: list[object] = []
        thread = threading.Thread(target=lambda: done.append(wheel.enqueue(b"second")), daemon=True)
        thread.start()
        thread.join(120)
        assert done


@pytest.mark.parametrize("line", range(1, 16))
def test_an_interrupt_before_each_line_that_ends_a_writer_costs_no_later_message(wheel_dir: Path, line: int) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue_many([b"0"], delay=60)
        assert wheel._journal is not None
        segment = wheel._journal.appender.lender.writer.segment
        assert segment is not None
        segment.failed = True  # as after Ctrl-C in a write
        codes = {f.__code__ for f in (Appender._retire, Appender._segment_ended, Appender._renew, Writer.release)}
        with interrupted(codes.__contains__, line):
            wheel.enqueue_many([b"perhaps"], delay=60)
        for n in range(1, 5):
            wheel.enqueue_many([b"%d" % n], delay=60)
    with Wheel(wheel_dir) as wheel:
        assert {m.payload for m in wheel.list()} - {b"perhaps"} == {b"0", b"1", b"2", b"3", b"4"}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", ["lock", "rename", "sync_dir"])
def test_an_interrupt_while_a_segment_is_made_leaves_no_locked_file(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, call: str, when: str
) -> None:
    inner = getattr(OsDisk, call)

    def interrupted_call(disk: OsDisk, *args: Any, **more: Any) -> object:
        monkeypatch.setattr(OsDisk, call, inner)
        if when == "after":
            inner(disk, *args, **more)
        raise KeyboardInterrupt

    with Wheel(wheel_dir) as wheel:
        monkeypatch.setattr(OsDisk, call, interrupted_call)
        with pytest.raises(KeyboardInterrupt):
            wheel.enqueue(b"perhaps", delay=60)
        here = str(wheel_dir / "journal") + "/"
        opened = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if os.path.lexists(fd)]
        assert not [name for name in opened if name.startswith(here)]
        wheel.enqueue(b"next", delay=60)
    assert {m.payload for m in Wheel(wheel_dir).list()} == {b"next"}


@pytest.mark.parametrize("sync", ["always", 30.0])
def test_a_close_that_was_interrupted_is_finished_by_the_next_one(tmp_path: Path, sync: Sync) -> None:
    """Ctrl-C comes once, before each line of the library that the close runs, up to the closing of the descriptor."""

    def is_ours(code: CodeType) -> bool:
        closes = code.co_name == "release" or code.co_filename.endswith(("/disk/disk.py", "/disk/forks.py"))
        return "/filewheel/" in code.co_filename and not closes

    for line in range(1, 200):
        path = tmp_path / f"{line}.wheel"
        wheel = Wheel.create(path, sync=sync)
        wheel.enqueue(b"x", delay=60)
        is_closed = False
        with interrupted(is_ours, line, can_be_signalled):
            wheel.close()
            is_closed = True
        wheel.close()
        assert wheel._journal is not None
        assert wheel._journal.appender._closed, line
        flusher = wheel._journal.appender._flusher
        if flusher is not None:
            flusher.join(timeout=60)
            assert not flusher.is_alive(), line
        assert not open_below(path / "journal"), line
        if is_closed:
            break
        shutil.rmtree(path)
    assert 10 < line < 199
