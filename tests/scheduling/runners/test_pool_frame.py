"""Frames in a pipe: whatever stands between them, what is taken is what was sent."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from filewheel.scheduling.runners.child import BrokenFrame, frame, take
from tests.support import seeds

TOKEN = bytes(range(16))
# Pieces of a token, and a frame of another process, are the garbage that is most like one.
GARBAGE = st.one_of(st.binary(max_size=40), st.sampled_from([TOKEN[:2], TOKEN[:15], frame(TOKEN[::-1], 1, b"abc")]))


@settings(max_examples=seeds(40, all_of=150).stop, deadline=None)
@given(st.lists(st.tuples(GARBAGE, st.binary(max_size=300))), st.integers(1, 50))
def test_frames_amid_garbage_are_taken_in_order_however_the_pipe_cuts_them(
    pieces: list[tuple[bytes, bytes]], step: int
) -> None:
    data = b"".join(junk + frame(TOKEN, number, body) for number, (junk, body) in enumerate(pieces))
    buffer, taken = bytearray(), []
    for at in range(0, len(data), step):
        buffer += data[at : at + step]
        while (one := take(buffer, TOKEN)) is not None:
            taken.append(one)
    assert taken == list(enumerate(body for _, body in pieces))


def test_a_frame_with_a_changed_body_is_an_error() -> None:
    sent = bytearray(frame(TOKEN, 1, b"hello"))
    sent[-1] ^= 1
    with pytest.raises(BrokenFrame, match="5 bytes"):
        take(sent, TOKEN)
    sent += frame(TOKEN, 2, b"next")
    assert take(sent, TOKEN) == (2, b"next")
