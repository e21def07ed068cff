"""Descriptors: none is left behind by a call that fails on a file that is open, and a close that fails is a close."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from filewheel import DiskError, Keeper, Wheel
from tests.conftest import assert_whole
from tests.support import open_below


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="nothing tells which files are open")
def test_a_file_that_is_opened_and_cannot_be_looked_at_is_closed_again(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int) -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fails)
        with pytest.raises(DiskError):
            Wheel(wheel_dir)
        with pytest.raises(DiskError):
            Keeper(wheel_dir, wait=False)
    assert not open_below(wheel_dir)
    assert_whole(wheel_dir)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="nothing tells which files are open")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_close_that_tells_of_an_error_closes_and_no_call_fails_for_it(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.close

    def fails(fd: int) -> None:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        real(fd)
        if is_file:
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fails)
        with Wheel(wheel_dir) as wheel:
            ids = [wheel.enqueue(b"x", delay=n) for n in (0, 60)]
            assert wheel.cancel(ids[1])
        with Keeper(wheel_dir, wait=False, background=False) as keeper:
            fired = keeper.claim()
            assert [m.id for m in fired] == ids[:1]
            keeper.ack(fired)
    assert not open_below(wheel_dir)
    assert_whole(wheel_dir)
