"""Webhooks that are delivered in the end, or end where somebody sees them.

    export FILEWHEEL=$HOME/webhooks.wheel
    python webhooks.py send https://example.com/hook order-7 '{"paid": true}'   # from any program, at any time
    python webhooks.py work                                                     # keeps running
    python webhooks.py dead                                                     # what was given up, and why
    python webhooks.py revive ID                                                # try one of them again

`filewheel inspect list` shows what waits.
"""

import os
import sys
import urllib.error
import urllib.request

from filewheel import GiveUp, Retry, RetryLater, Scheduler, current_job

scheduler = Scheduler(os.environ["FILEWHEEL"], threads=8)

# 5 s, 10 s, 20 s, ... at most an hour, up to a quarter more by chance so that a receiver that comes back is not met by
# everybody at once. With these 18 retries it is tried for about nine hours.
# A URL that is none (ValueError) will not become one.
RETRY = Retry(
    limit=18,
    delay_s=float(os.environ.get("WEBHOOKS_DELAY_S", "5")),
    factor=2,
    delay_max_s=3600,
    never=(ValueError,),
)


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would be followed by a GET without a body, and look like a delivery."""

    def redirect_request(self, *args):
        return None


opener = urllib.request.build_opener(NoRedirect)


# A time-out in a thread only ends the waiting for it, so the request has a shorter one of its own that really ends it.
@scheduler.on("webhook", retry=RETRY, timeout_s=30)
def deliver(url, event, body):
    job = current_job()
    request = urllib.request.Request(url, data=body.encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    # The same for all attempts, so a receiver that did its work and whose answer was lost can tell.
    request.add_header("Idempotency-Key", str(job.fire_id))
    request.add_header("X-Event", event)
    try:
        with opener.open(request, timeout=10):
            pass
    except urllib.error.HTTPError as exc:
        exc.close()
        after = exc.headers.get("Retry-After", "")
        if exc.code in (429, 503) and after.isdigit() and job.attempt < RETRY.limit:
            # The receiver knows better. RetryLater has no limit of its own: hence the look at the attempt.
            raise RetryLater(int(after), f"{exc.code}, asked to wait") from None
        if exc.code < 500 and exc.code not in (408, 425, 429):
            raise GiveUp(f"{exc.code}: it will not accept this another time either") from None
        raise  # 5xx: by the Retry above, as are a connection that is refused and a name that is not found


def send(url, event, body):
    # While this event is on its way it is not enqueued a second time, whoever calls this how often. The key is free
    # again when it was delivered or is dead: to remember for longer what was sent is the business of a table.
    return deliver.options(key=f"event:{event}", on_conflict="keep").enqueue(url, event, body)


def main(command="", *args):
    if command == "work":
        scheduler.on_event(lambda e: print(e.kind, e.id, e.error, flush=True), ["retried", "dead", "acknowledged"])
        scheduler.run()  # until SIGTERM or Ctrl-C
    elif command == "send" and len(args) == 3:
        print(send(*args))
    elif command == "dead":
        for message in scheduler.wheel.list(dead=True):
            print(message.id, message.headers["filewheel.key"], message.headers["filewheel.reason"])
    elif command == "revive" and len(args) == 1:
        print(scheduler.wheel.reschedule(args[0], delay=0))  # a new start: its attempts are counted from 0 again
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    finally:
        scheduler.stop()
