"""Stands for ssh with a slow or a bad line: `FILEWHEEL_SSH="python relay.py DELAY_MS CUT_BYTES"`.

It runs the command on this machine, delays what passes either way, and ends like a lost connection after CUT_BYTES have
passed to the far end (0: never). The far end then sees the end of its stdin, perhaps in the middle of a message.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time


def carry(inward: int, outward: int, delay_s: float, cut_bytes: int) -> None:
    """Pass bytes on, each after a delay, until the end or the cut."""
    waiting: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def write() -> None:
        left = cut_bytes or 1 << 62
        while True:
            due_s, data = waiting.get()
            time.sleep(max(0.0, due_s - time.monotonic()))
            data = data[:left]
            left -= len(data)
            try:
                while data:
                    data = data[os.write(outward, data) :]
            except OSError:
                os._exit(255)
            if not left:
                print("Connection reset by peer", file=sys.stderr)
                os._exit(255)

    threading.Thread(target=write, daemon=True).start()
    while data := os.read(inward, 1 << 16):
        waiting.put((time.monotonic() + delay_s, data))


def main(delay_ms: str, cut_bytes: str, *rest: str) -> None:
    """Run the last argument with a shell, as ssh does over there."""
    far = subprocess.Popen(["sh", "-c", f"exec {rest[-1]}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert far.stdin is not None
    assert far.stdout is not None
    delay_s = float(delay_ms) / 1000
    threading.Thread(target=carry, args=(0, far.stdin.fileno(), delay_s, int(cut_bytes)), daemon=True).start()
    carry(far.stdout.fileno(), 1, delay_s, 0)
    os._exit(far.wait())


if __name__ == "__main__":
    main(*sys.argv[1:])
