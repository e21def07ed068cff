"""The tree of errors: as drawn, and each of its members useful."""

from __future__ import annotations

import errno
import inspect
import pickle
import re
from typing import Any

import pytest

import filewheel
from filewheel import errors
from filewheel.errors import (
    BadArgument,
    DiskError,
    FilewheelError,
    Locked,
    ReadOnly,
    WheelFull,
    disk_error,
)

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, FilewheelError)]


def drawn_tree() -> dict[str, str | None]:
    """Read the tree in the module's docstring: class → its parent."""
    assert errors.__doc__ is not None
    tree: dict[str, str | None] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line)
        if match:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            tree[match[2]] = above[depth - 1] if depth else None
    return tree


def leaves() -> list[type[FilewheelError]]:
    """Return every class of the tree; those with children are raised as well."""
    return CLASSES


def make(cls: type[FilewheelError], **fields: Any) -> FilewheelError:
    """Make an error, and set what its constructor does not take."""
    known = inspect.signature(cls).parameters
    error = cls("it went wrong", **{k: v for k, v in fields.items() if k in known})
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def test_the_tree_that_is_drawn_is_the_tree_that_is() -> None:
    drawn = drawn_tree()
    assert drawn.keys() == {c.__name__ for c in CLASSES}
    for cls in CLASSES:
        parent = drawn[cls.__name__]
        assert cls.__bases__[0].__name__ == (parent or "Exception")


def test_every_error_can_be_imported_from_the_package() -> None:
    offered = {getattr(filewheel, name) for name in filewheel.__all__ if name != "Sync"}
    assert set(CLASSES) == {o for o in offered if inspect.isclass(o) and issubclass(o, FilewheelError)}


def test_a_bad_argument_is_a_value_error_and_nothing_else_is() -> None:
    assert {c for c in CLASSES if issubclass(c, ValueError)} == {c for c in CLASSES if issubclass(c, BadArgument)}
    assert not any(issubclass(c, OSError) for c in CLASSES)


@pytest.mark.parametrize("cls", leaves())
def test_an_error_shows_where_it_is_and_what_to_do(cls: type[FilewheelError]) -> None:
    error = make(cls, path="jobs.wheel/checkpoint", offset=4096, hint="call again")
    assert str(error) == "jobs.wheel/checkpoint: it went wrong at offset 4096. Try: call again"
    assert (error.path, error.offset, error.hint) == ("jobs.wheel/checkpoint", 4096, "call again")


@pytest.mark.parametrize("cls", leaves())
def test_an_error_that_knows_no_more_says_what_it_knows(cls: type[FilewheelError]) -> None:
    error = make(cls, hint=None)
    assert str(error) == "it went wrong"
    assert str(make(cls, hint=None, offset=0)) == "it went wrong at offset 0"


@pytest.mark.parametrize("cls", leaves())
def test_an_error_survives_the_way_to_another_process(cls: type[FilewheelError]) -> None:
    error = make(cls, path="p", offset=8, hint="h")
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is cls
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_every_kind_is_a_word_for_the_command_line() -> None:
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", c.kind) for c in CLASSES)
    assert {c.kind for c in CLASSES if issubclass(c, BadArgument)} == {"usage"}


def test_a_lock_error_names_the_process_and_says_what_to_do() -> None:
    error = Locked("process 7 is the keeper", pid=7, path="jobs.wheel/keeper.lock")
    assert error.pid == 7
    assert str(error).startswith("jobs.wheel/keeper.lock: process 7 is the keeper. Try: wait for it")


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (errno.ENOSPC, WheelFull),
        (errno.EDQUOT, WheelFull),
        (errno.EROFS, ReadOnly),
        (errno.EACCES, ReadOnly),
        (errno.EPERM, ReadOnly),
        (errno.EMFILE, DiskError),
        (errno.ENFILE, DiskError),
        (errno.EIO, DiskError),
        (errno.ENOTDIR, DiskError),
    ],
)
def test_what_the_system_said_becomes_the_member_that_says_what_to_do(code: int, cls: type[DiskError]) -> None:
    error = disk_error(OSError(code, "the system's words"), "jobs.wheel/x")
    assert type(error) is cls
    assert error.errno == code
    assert error.path == "jobs.wheel/x"
    assert "the system's words" in str(error)
    assert error.hint


def test_an_os_error_without_a_number_is_still_told() -> None:
    error = disk_error(OSError("only words"), "p")
    assert type(error) is DiskError
    assert "only words" in str(error)


def test_a_full_disk_is_not_a_read_only_one() -> None:
    assert not isinstance(disk_error(OSError(errno.ENOSPC, "full"), "p"), ReadOnly)


def test_a_refusal_of_permissions_does_not_say_that_something_was_to_be_written() -> None:
    assert "cannot be written" not in str(disk_error(PermissionError(errno.EACCES, "Permission denied"), "p"))
    assert "cannot be written" in str(disk_error(OSError(errno.EROFS, "Read-only file system"), "p"))
