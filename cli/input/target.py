"""Import a scheduler named MODULE:NAME, as its program would import it.

Invariant: an error of the import becomes one line with the file and line where it was raised.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from filewheel import AsyncScheduler, Scheduler

from ..failure import Failure

_FORM = "write MODULE:NAME, as in app:scheduler or package.jobs:scheduler"


def load_scheduler(target: str) -> Scheduler | AsyncScheduler:
    """Import a module, the present directory first, and return the scheduler of that name.

    Raises Failure: "usage" for a wrong name, "failed" when the import fails.
    """
    module_name, colon, name = target.partition(":")
    names = (*module_name.split("."), *name.split("."))
    if not colon or module_name.endswith(".py") or not all(part.isidentifier() for part in names):
        raise Failure("usage", f"{target!r} names no scheduler", hint=_FORM)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _import(module_name)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise Failure("usage", f"the module {module_name} has no {name!r}", hint=_known(module))
        found = getattr(found, part)
    if not isinstance(found, (Scheduler, AsyncScheduler)):
        raise Failure("usage", f"{target} is a {type(found).__name__}, not a Scheduler", hint=_known(module))
    return found


def _known(module: ModuleType) -> str | None:
    """Return a hint with the schedulers of a module."""
    names = [f"{module.__name__}:{k}" for k, v in vars(module).items() if isinstance(v, (Scheduler, AsyncScheduler))]
    return ", ".join(names) or None


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise Failure(
                "usage", f"there is no module {exc.name!r} in {os.getcwd()}, nor where this Python looks",
                hint="cd to where it is, or set PYTHONPATH; install filewheel beside the program",
            ) from None  # fmt: skip
        raise _broken(name, exc) from None
    except (Exception, SystemExit) as exc:
        raise _broken(name, exc) from None


def _broken(name: str, exc: BaseException) -> Failure:
    if isinstance(exc, SyntaxError):
        place = f"{exc.filename}:{exc.lineno}"
    else:
        frames = [f for f in traceback.extract_tb(exc.__traceback__) if "importlib" not in f.filename]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else name
    return Failure("failed", f"importing {name} raised {type(exc).__name__}: {exc} ({place})")
