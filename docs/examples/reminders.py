"""A web app that schedules reminders, with the scheduler inside of it. Standard library and filewheel only.

    export FILEWHEEL=$HOME/reminders.wheel
    python reminders.py 8080
    curl -d '{"key": "dentist", "text": "dentist at ten", "in_s": 5}' localhost:8080/reminders
    curl localhost:8080/reminders
    curl -X DELETE localhost:8080/reminders/dentist

Kill it in any way and start it again: each reminder that was answered with 201 still exists, and overdue reminders are
sent late. Start it twice, on two ports: both accept requests and one sends. When that one dies, the other one sends.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from filewheel import BadArgument, Cancelled, KeyHeld, Retry, Scheduler, call_of, current_job

# Defining a scheduler opens nothing, so it can be at the top of the module that the rest of the app imports.
scheduler = Scheduler(os.environ["FILEWHEEL"])  # an absolute path, for any working directory


@scheduler.on("remind", retry=Retry(limit=10, delay_s=5))
def remind(text):
    # Send a mail or a push message here. It may be sent twice; the fire id lets the receiver detect that.
    print(f"remind {text} ({current_job().fire_id})", flush=True)


def add(wish):
    """Schedule a reminder. It is on disk when this returns, so "201 Created" survives a power cut."""
    key, text = wish["key"], wish["text"]
    if "at" in wish:
        return remind.options(key=key).at(datetime.fromisoformat(wish["at"]), text)  # without a zone it is refused
    return remind.options(key=key).after(wish["in_s"], text)


def pending():
    """Yield the pending reminders in due order, read from disk without a lock."""
    for message in scheduler.wheel.list(topic="remind"):
        (text,) = call_of(message).args
        yield {"key": message.key, "text": text, "due": message.due.isoformat()}


class Api(BaseHTTPRequestHandler):
    def do_POST(self):
        if self.path != "/reminders":
            return self.answer(404, {"error": "no such page"})
        try:
            wish = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            return self.answer(201, {"id": str(add(wish))})
        except KeyHeld:  # a second click must not remind twice; on_conflict="replace" would move it instead
            return self.answer(409, {"error": "there is a reminder with this key"})
        except (BadArgument, KeyError, TypeError, ValueError) as exc:
            return self.answer(400, {"error": str(exc)})

    def do_GET(self):
        if self.path != "/reminders":
            return self.answer(404, {"error": "no such page"})
        return self.answer(200, list(pending()))

    def do_DELETE(self):
        # By key, not by id: a retry changes the id of a message, and keeps its key.
        key = unquote(self.path.removeprefix("/reminders/"))
        found = self.path.startswith("/reminders/") and key
        outcome = scheduler.cancel(key=key) if found else Cancelled.NOT_FOUND
        return self.answer(200 if outcome else 404, {"cancelled": outcome})  # "begun": it is being sent

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
    server = ThreadingHTTPServer(("127.0.0.1", port), Api)
    # `stop` waits for a reminder that is being sent. shutdown() waits for serve_forever, so it needs another thread.
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    with scheduler:  # start() and stop()
        print(f"http://127.0.0.1:{server.server_port}/reminders", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.1)
        server.server_close()


if __name__ == "__main__":
    main()
