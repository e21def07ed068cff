"""Types and handlers for tests of arguments: in a module of their own, because a process imports them by name."""

from __future__ import annotations

import dataclasses
import json
import os
from enum import Enum
from typing import Any
from uuid import UUID

from filewheel import Scheduler


class Colour(Enum):
    """A plain one."""

    RED = "red"


@dataclasses.dataclass(frozen=True)
class Point:
    """A place."""

    x: int
    colour: Colour = Colour.RED
    tags: tuple[str, ...] = ()
    inner: Point | None = None


class Money:
    """A type that only the program knows."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return self.cents


def encode(value: Any) -> Any:
    """Store money."""
    if isinstance(value, Money):
        return {"cents": value.cents}
    raise TypeError("only money")


def decode(value: Any, annotation: Any) -> Any:
    """Read money."""
    if annotation is Money and isinstance(value, dict):
        return Money(value["cents"])
    return value


scheduler = Scheduler(os.environ.get("FILEWHEEL_TEST_WHEEL", "unused.wheel"), processes=1, encode=encode, decode=decode)


@scheduler.on("note", where="process")
def note(path: str, id_: UUID, point: Point, money: Money) -> None:
    """Write what came."""
    with open(path, "w") as file:
        json.dump([type(id_).__name__, point == Point(1, tags=("a",)), money == Money(5)], file)
