"""Import the optional packages of the bridges on first use.

Invariant: importing a bridge never fails; using one without its package raises an error that names the extra.
"""

from __future__ import annotations

import importlib
from typing import Any

from filewheel.errors import BadArgument


def need(module: str, extra: str) -> Any:
    """Return a module of an optional extra. Raises BadArgument when it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        raise BadArgument(
            f"{exc.name} is not installed", hint=f"install it with the extra: `pip install 'filewheel[{extra}]'`"
        ) from exc
