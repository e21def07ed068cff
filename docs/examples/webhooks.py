"""Webhooks that are retried until they are delivered, or become visible dead letters.

    export FILEWHEEL=$HOME/webhooks.wheel
    python webhooks.py send https://example.com/hook order-7 '{"paid": true}'   # from any program, at any time
    python webhooks.py work                                                     # runs for ever
    python webhooks.py dead                                                     # list the failed ones, with the reason
    python webhooks.py revive ID                                                # retry one of them

`filewheel inspect list` shows the pending ones.
"""

import os
import sys
import urllib.error
import urllib.request

from filewheel import GiveUp, Retry, RetryLater, Scheduler, current_job

scheduler = Scheduler(os.environ["FILEWHEEL"], threads=8)

# Delays of 5 s, 10 s, 20 s, ... up to an hour, plus random jitter of up to a quarter, so that a recovered receiver does
# not get all requests at once. 18 retries take about nine hours. An invalid URL (ValueError) is not retried.
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


# A time-out cannot stop a thread, so the request has a shorter time-out of its own that ends it.
@scheduler.on("webhook", retry=RETRY, timeout_s=30)
def deliver(url, event, body):
    job = current_job()
    request = urllib.request.Request(url, data=body.encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    # The same key for all attempts, so a receiver detects a repetition after its answer was lost.
    request.add_header("Idempotency-Key", str(job.fire_id))
    request.add_header("X-Event", event)
    try:
        with opener.open(request, timeout=10):
            pass
    except urllib.error.HTTPError as exc:
        exc.close()
        after = exc.headers.get("Retry-After", "")
        if exc.code in (429, 503) and after.isdigit() and job.attempt < RETRY.limit:
            # The receiver sets the delay. RetryLater is not counted against the limit, so check the attempt.
            raise RetryLater(int(after), f"{exc.code}, asked to wait") from None
        if exc.code < 500 and exc.code not in (408, 425, 429):
            raise GiveUp(f"{exc.code}: a retry would be refused too") from None
        raise  # 5xx: retried by RETRY, like a refused connection and an unknown host name


def send(url, event, body):
    # A pending event is not enqueued a second time. The key is free again when the event was delivered or is dead. To
    # remember delivered events for longer, use a table.
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
        print(scheduler.wheel.reschedule(args[0], delay=0))  # its attempts count from 0 again
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    finally:
        scheduler.stop()
