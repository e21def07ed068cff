"""wheel.json: a wheel's format, id, salt, lap length and limits (docs/format.md, 3).

It is written once, with the wheel. Without its salt no other file can be read.
Invariant: `parse_settings` returns only settings that `create_directory` could have written.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field

from filewheel.checks import shown
from filewheel.errors import BadArgument, Damaged, NewerFormat
from filewheel.format.frame import FORMAT
from filewheel.format.sealed import Unsealed, seal, unseal

SLOTS_DEFAULT = 900
PAYLOAD_BYTES_MAX_DEFAULT = 1 << 20
PAYLOAD_BYTES_LIMIT = 64 << 20
Sync = float | str
"""`"always"`, `"never"`, or the seconds between two flushes."""


def check_sync(sync: object) -> Sync:
    """Return a valid `sync`, or raise BadArgument."""
    if sync in ("always", "never"):
        return str(sync)
    if isinstance(sync, (int, float)) and not isinstance(sync, bool) and 0.001 <= sync <= 3600:
        return float(sync)
    raise BadArgument(
        f'sync is "always", "never" or seconds from 0.001 to 3600, not {shown(sync)}',
        hint='sync="always" survives a power cut; docs/guarantees.md has the others',
    )


@dataclass(frozen=True)
class Settings:
    """The content of wheel.json."""

    id: str
    salt: str
    slots: int = SLOTS_DEFAULT
    """Seconds in a lap."""
    sync: Sync = "always"
    payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT
    created: str = ""
    format: int = FORMAT
    salt_bytes: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "salt_bytes", bytes.fromhex(self.salt))

    def key_hash(self, key: str) -> bytes:
        """Return the hash by which the index knows a unique key. Cost: 1 µs."""
        return hashlib.blake2b(key.encode(), digest_size=16, key=self.salt_bytes).digest()

    def lap_of(self, second: int) -> int:
        """Return the lap of a second."""
        return second // self.slots

    def seconds_of(self, lap: int) -> range:
        """Return the seconds of a lap."""
        return range(lap * self.slots, (lap + 1) * self.slots)

    def to_json(self) -> bytes:
        """Write wheel.json, with its checksum as the last line."""
        fields = {k: v for k, v in asdict(self).items() if k != "salt_bytes"}
        return seal({"format": self.format, **fields})


def parse_settings(data: bytes, path: str) -> Settings:
    """Read wheel.json. The rule of its checksum is the same in every format (docs/format.md).

    Raises NewerFormat when a newer filewheel wrote it, Damaged when it is damaged.
    """
    try:
        fields = unseal(data)
        number = fields.get("format")
        if type(number) is int and number > FORMAT:
            raise NewerFormat(
                f"this wheel has format {number}; this filewheel reads up to format {FORMAT}",
                path=path,
                hint="upgrade filewheel",
            )
        settings = Settings(**fields)
        _check_settings(settings)
    except Unsealed as exc:
        raise Damaged("the settings fail their checksum", path=path, hint="`filewheel repair`") from exc
    except (ValueError, TypeError) as exc:
        raise Damaged(f"not a wheel's settings ({exc})", path=path, hint="`filewheel repair`") from exc
    return settings


def _check_settings(settings: Settings) -> None:
    """Raise unless `create_directory` could have written the settings."""
    if type(settings.format) is not int or not 1 <= settings.format <= FORMAT:
        raise ValueError(f"format {settings.format!r}")
    if len(settings.salt_bytes) != 16 or len(bytes.fromhex(settings.id)) != 16:
        raise ValueError("the id and the salt have 16 bytes each")
    check_limits(settings.slots, settings.payload_bytes_max)
    check_sync(settings.sync)


def check_limits(slots: int, payload_bytes_max: int) -> None:
    """Raise BadArgument unless lap length and payload limit are valid."""
    if type(slots) is not int or not 60 <= slots <= 86_400:
        raise BadArgument(f"a lap has 60 to 86400 slots, not {shown(slots)}")
    if type(payload_bytes_max) is not int or not 1 <= payload_bytes_max <= PAYLOAD_BYTES_LIMIT:
        raise BadArgument(f"payload_bytes_max is 1 to {PAYLOAD_BYTES_LIMIT}, not {shown(payload_bytes_max)}")
