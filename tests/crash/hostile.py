"""Bytes that somebody made up: havoc on files that were valid, and forgeries of which every checksum holds.

Forged frames and settings get behind the checksums, to the parsers: nesting, counts and lengths that are absurd, types
that are wrong, numbers at their edges, ids and dues that no writer makes.
Invariant: what is made is under 1 MiB, and is given by the random generator alone.
"""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

import msgpack

from filewheel.format import layout
from filewheel.format.frame import Gap, Scanner, seal
from filewheel.format.record import DROP_PREFIX, PUT_PREFIX
from tests.crash.population import Population

EDGES = [0, 1, -1, 7, 8, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**58, 2**63 - 1, 2**63, 2**64 - 1]
BOMBS = [
    b"\x91" * 2000,
    b"\x81\xc0" * 900,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xffabc",
    b"\xc9\x00\x00\x00\x04\x05abcd",
    b"\xd6\xff\x00\x00\x00\x00",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\xc1",
    b"\xa2\xff\xfe",
    b"\x81\x81\xc0\xc0\xc0",
    b"\x81\x90\xc0",
    b"",
]


class Forger:
    """Makes bad bytes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    # -- havoc -----------------------------------------------------------------------------------------------

    def havoc(self, data: bytes, others: list[bytes]) -> bytes:
        """Change some bytes in some of the ways in which fuzzers do."""
        out = bytearray(data)
        for _ in range(self.rng.choice([1, 1, 2, 4, 16])):
            self._change(out, others)
        return bytes(out[: 1 << 20])

    def _change(self, out: bytearray, others: list[bytes]) -> None:
        rng = self.rng
        at = rng.randrange(len(out) + 1)
        size = rng.choice([1, 2, 4, 8, 16, 72, 512])
        how = rng.randrange(7)
        if how == 0:
            out[at:at] = rng.randbytes(size)
        elif how == 1:
            del out[at : at + size]
        elif how == 2:
            out[at : at + size] = rng.randbytes(len(out[at : at + size]))
        elif how == 3:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            out[at : at + size] = other[start : start + rng.choice([size, 400])]
        elif how == 4:
            width = rng.choice([1, 2, 4, 8])
            edge = rng.choice(EDGES) & (1 << 8 * width) - 1
            out[at : at + width] = edge.to_bytes(width, rng.choice(["big", "little"]))
        elif how == 5:
            out[at:at] = rng.choice(BOMBS)
        else:
            out[at:at] = out[at : at + size] * rng.choice([2, 50])

    # -- forged ----------------------------------------------------------------------------------------------

    def value(self) -> Any:
        """Return any value that msgpack can carry."""
        rng = self.rng
        return rng.choice(
            [
                None, True, rng.choice(EDGES), 1.5, float("nan"), float("inf"), "", "a\x1b[2Jb\u202e", "x" * 300, b"",
                b"\xff" * 16, bytes(16), rng.randbytes(15), [], [1], {}, {"a": "b"}, {"a": 1}, {1: 2},
                msgpack.ExtType(5, b"x"), msgpack.Timestamp(2**33, 1), [[[[[]]]]],
            ]
        )  # fmt: skip

    def packed(self) -> bytes:
        """Return a value packed, or what only looks like one."""
        return self.rng.choice(BOMBS) if self.rng.random() < 0.3 else pack(self.value())

    def id(self) -> bytes:
        rng = self.rng
        due = rng.choice([*EDGES, 1_800_000_001 * 10**6, 253_402_300_800 * 10**6, 288 * 10**15]) & (1 << 58) - 1
        return rng.choice([b"\xff" * 16, bytes(16), (due << 70 | rng.getrandbits(70)).to_bytes(16, "big")])

    def record(self) -> bytes:
        """Return a put or a drop of which the start is right, and the rest is anything."""
        if self.rng.random() < 0.3:
            return DROP_PREFIX + self.id() + self.rng.choice([b"\x01", b"\x00", b"\x7f", b"\xcc\xff", b"\xc0"])
        fields = [b"\xc0", b"\xcf" + bytes(8), b"\x00", b"\xa0", b"\x80", b"\xc4\x01x"]
        for i in range(6):
            if self.rng.random() < 0.2:
                fields[i] = self.packed()
        return PUT_PREFIX + self.id() + b"".join(fields)

    def frames(self, population: Population, name: str, count: int) -> bytes:
        """Return a file of frames of which the checksums hold, and nothing else has to."""
        rng, data = self.rng, b""
        for number in range(1, count + 1):
            records = [self.record() for _ in range(rng.randrange(4))]
            body = rng.choice([b"".join(records), b"".join(records), self.packed(), rng.randbytes(40)])
            puts = sum(r[:4] == PUT_PREFIX for r in records)
            ids = sorted(r[4:20] for r in records) or [b"\xff" * 16, bytes(16)]
            honest = rng.random() < 0.7
            data += seal(
                body,
                seed=seed(population, name),
                offset=len(data),
                number=number if honest else rng.choice(EDGES) & 2**64 - 1,
                synced=0 if honest else rng.choice(EDGES) & 2**64 - 1,
                puts=puts if honest else rng.choice(EDGES) & 2**32 - 1,
                drops=len(records) - puts if honest else rng.choice(EDGES) & 2**32 - 1,
                first=ids[0] if honest else self.id(),
                last=ids[-1] if honest else self.id(),
            )
        return data

    def resealed(self, population: Population, name: str) -> bytes:
        """Return a file of which some frames were changed, body or header, and sealed anew."""
        rng, data, sum_seed = self.rng, population.image.files[name], seed(population, name)
        out = b""
        for item in Scanner(lambda size, offset: data[offset : offset + size], 0, len(data), sum_seed):
            if isinstance(item, Gap):
                out += data[item.offset : item.end]
                continue
            fields = {k: getattr(item, k) for k in ("number", "synced", "puts", "drops", "first", "last")}
            body = item.body
            if rng.random() < 0.4:
                body = self.havoc(body, [body, self.record()])
            while rng.random() < 0.2:
                key = rng.choice(list(fields))
                width = 32 if key in ("puts", "drops") else 64
                fields[key] = self.id() if key in ("first", "last") else rng.choice(EDGES) & (1 << width) - 1
            out += bytes(-len(out) % 8)
            out += seal(body, seed=sum_seed, offset=len(out), **fields)
        return out

    def names(self, population: Population) -> dict[str, bytes]:
        """Return files that nobody made under names that are, or are nearly, those of the wheel's own."""
        rng, found = self.rng, {}
        for _ in range(rng.randrange(1, 5)):
            n = rng.choice([*(e for e in EDGES if e >= 0), 10**11, 10**12 - 1, 288 * 10**9, 48 * 10**8 - 1])
            name = rng.choice(
                [f"journal/{w}-{n:06d}.log" for w in ("AAAAAAAA", *genuine(population)["positions"])]
                + [f"journal/.AAAAAAAA-{n:06d}.tmp", f"laps/{n}.lap", f"laps/{n}.lap", f"laps/{n}", f"laps/{n}.slot"]
                + ["quarantine/a.json", "quarantine/laps_1.lap@0.json", "keeper.lock", "checkpoint.tmp", "ballast"]
            )
            found[name] = rng.choice(
                [self.frames(population, name, 2), self.packed(), b"", json.dumps(self.line()).encode()]
            )
        return found

    def line(self) -> Any:
        """Return any value that JSON can carry."""
        return self.rng.choice([None, 5, "x", [], [[]], {"name": 5}, {"offset": []}, {"pid": -1, "role": 5}, {"a": {}}])

    def checkpoint(self, population: Population) -> bytes:
        """Return a checkpoint with wrong fields, and with right checksums."""
        rng = self.rng
        fields = genuine(population)
        for _ in range(rng.randrange(1, 4)):
            self._spoil(fields)
        return seal(pack(fields), seed=seed(population, "checkpoint"), offset=0, number=3, synced=0, puts=0, drops=0)

    def _spoil(self, fields: dict[Any, Any]) -> None:
        rng = self.rng
        key = rng.choice(["deal", "keeper", "positions", "laps", "slots", "unmatched"])
        inside = fields.get(key)
        how = rng.randrange(4)
        if how == 0:
            fields[key] = self.value()
        elif how == 1:
            fields.pop(key, None)
        elif isinstance(inside, list) and inside:
            inside[rng.randrange(len(inside))] = rng.choice([self.value(), rng.choice(EDGES)])
        elif isinstance(inside, dict) and inside:
            writer = rng.choice(list(inside))
            odd = rng.choice([writer, "../../etc", "", 5, "A" * 300])
            inside[odd] = rng.choice([self.value(), [rng.choice(EDGES) for _ in range(3)], [self.value()] * 3])
        else:
            fields[key] = rng.choice(EDGES)

    def settings(self, population: Population) -> bytes:
        """Return a wheel.json with wrong fields, and with a right checksum."""
        fields = json.loads(population.image.files["wheel.json"])
        del fields["crc32"]
        for _ in range(self.rng.randrange(1, 3)):
            key = self.rng.choice([*fields, "more"])
            fields[key] = self.rng.choice(
                [None, -1, 0, 1, 10**30, 1.5, "", "zz" * 16, "00" * 17, [], {}, True, "é\ud800"]
            )
        body = json.dumps(fields, indent=2).encode()
        if self.rng.random() < 0.2:
            body = self.rng.choice([b"[" * 30000 + b"\n}", b"null\n}", b"5\n}", b'"\n}', b"{}", b"\xff\n}"])
        return body[:-2] + b',\n  "crc32": %d\n}\n' % zlib.crc32(body)


def genuine(population: Population) -> dict[Any, Any]:
    """Return what the population's checkpoint says."""
    data = population.image.files["checkpoint"]
    return dict(msgpack.unpackb(data[72 : 72 + int.from_bytes(data[8:12], "little")]))


def seed(population: Population, name: str) -> int:
    """Return the seed of a file."""
    return layout.seed(bytes.fromhex(json.loads(population.image.files["wheel.json"])["salt"]), name)


def pack(value: Any) -> bytes:
    """Pack a value; what msgpack cannot carry becomes nil."""
    try:
        return bytes(msgpack.packb(value))
    except (OverflowError, ValueError, TypeError):
        return b"\xc0"
