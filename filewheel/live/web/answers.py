"""Answers of the page: JSON that every browser reads, errors with their hint, and the headers that protect it.

Invariant: each answer forbids scripts, styles, frames and connections from anywhere but this page.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from filewheel.errors import FilewheelError
from filewheel.live.message_fields import json_of
from filewheel.live.web.access import RefusedRequest

SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Sent with every answer."""

_STATUS = {
    "usage": 400,
    "not-found": 404,
    "key-held": 409,
    "fenced": 409,
    "locked": 409,
    "not-claimed": 409,
    "too-few-copies": 503,
}
"""The HTTP status of an error's kind; any other means that the wheel cannot be used now."""


def to_bytes(fields: object) -> bytes:
    """Return JSON that every browser reads: ASCII, and no NaN."""
    try:
        return json.dumps(fields, ensure_ascii=True, allow_nan=False).encode()
    except ValueError:
        return json.dumps(json_of(fields), ensure_ascii=True, allow_nan=False).encode()


def answer(fields: object, status: int = 200) -> Response:
    """Return an answer of JSON."""
    return Response(to_bytes(fields), status, media_type="application/json")


def error_fields(exc: FilewheelError) -> dict[str, Any]:
    """Return an error as the command line's `--json` has it."""
    place = f"{exc.path}: " if exc.path else ""
    return {"error": exc.kind, "message": f"{place}{exc.what}", "hint": exc.hint}


def error(exc: FilewheelError) -> Response:
    """Return the answer for an error of the library."""
    return answer(error_fields(exc), _STATUS.get(exc.kind, 503))


def refused(refusal: RefusedRequest) -> Response:
    """Return the answer for a request that is not allowed."""
    fields = {"error": refusal.kind, "message": refusal.message, "hint": refusal.hint}
    response = answer(fields, refusal.status)
    if refusal.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def failed(status: int, kind: str, message: str, hint: str | None = None) -> Response:
    """Return the answer for another failure."""
    return answer({"error": kind, "message": message, "hint": hint}, status)
