"""Frames in a pipe: whatever stands between them, what is taken is what was sent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filewheel.scheduling.runners.pool_frame import BrokenFrame, Frames, frame

MAGIC = frame(b"")[:4]
# Pieces of frames are the garbage that is most like one.
GARBAGE = st.one_of(st.binary(max_size=40), st.sampled_from([MAGIC, MAGIC[:2], frame(b"abc")[:-4], MAGIC * 5]))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(GARBAGE, st.binary(max_size=300))), st.integers(1, 50))
def test_frames_amid_garbage_are_taken_in_order_however_the_pipe_cuts_them(
    pieces: list[tuple[bytes, bytes]], step: int
) -> None:
    # A header that says "more to come" would take what follows for its body; a checksum then says so.
    pieces = [(junk, body) for junk, body in pieces if len(junk) < 16 or MAGIC not in junk or junk == MAGIC * 5]
    data = b"".join(junk + frame(body) for junk, body in pieces)
    frames, taken = Frames(), []
    for at in range(0, len(data), step):
        frames.feed(data[at : at + step])
        while (body := frames.take()) is not None:
            taken.append(body)
    assert taken == [body for _, body in pieces]


def test_a_frame_with_a_changed_body_is_an_error() -> None:
    sent = bytearray(frame(b"hello"))
    sent[-1] ^= 1
    frames = Frames()
    frames.feed(bytes(sent))
    with pytest.raises(BrokenFrame, match="5 bytes"):
        frames.take()
    frames.feed(frame(b"next"))
    assert frames.take() == b"next"
