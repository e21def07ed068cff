"""Where filewheel runs: on Linux, and nowhere by accident."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import filewheel
from filewheel.errors import FilewheelError, WrongPlatform
from tests.support import REPO


@pytest.mark.parametrize("name", ["darwin", "win32", "freebsd14", "android"])
def test_on_another_system_than_linux_the_import_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", name)
    monkeypatch.delitem(sys.modules, "filewheel")
    with pytest.raises(ImportError, match=rf"runs on Linux only, and this is {name}: .*\. Try: a container") as raised:
        importlib.import_module("filewheel")
    assert isinstance(raised.value, WrongPlatform)
    assert isinstance(raised.value, FilewheelError)
    assert filewheel.WrongPlatform is WrongPlatform


@pytest.mark.parametrize("start", ["import cli.main as c; c.main()", "import cli.main"])
def test_on_another_system_the_command_says_so_in_one_line(start: str) -> None:
    code = f"import sys, os, fcntl, signal, subprocess; sys.platform = 'darwin'; {start}"
    ran = subprocess.run(
        [sys.executable, "-c", code, "--version"], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("filewheel: filewheel runs on Linux only, and this is darwin: ")
    assert len(ran.stderr.splitlines()) == 1
