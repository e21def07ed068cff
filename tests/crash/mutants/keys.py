"""Mutants of unique keys."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, becomes, before, gives, without

MUTANTS: list[Mutant] = [
    m("key-unlocked", "U1",
      becomes('while not name.startswith("keys/") and not disk.lock(fd, wait=False):'),
      "a writer that takes a key has its lock from the look to the frame", "race keys 1 @10"),
    m("key-lock-early", "U1", before("held.close()"), "the lock of a key is released only when the frame is written",
      "race key_batches 1 @12"),
    m("key-undealt-unlisted", "U2", NEVER, "an undealt message lists itself", "play key-never @16"),
    m("key-dealt-unlisted", "U2", DROP, "a deal enters the keys of the messages that it covers",
      "play key-dealt-unflushed @52"),
    m("keys-half-done", "U",
      becomes("if not units or (False and any(isinstance(r, FilewheelError) for r in results)):"),
      "of a call with many keys all is enqueued or nothing",
      "tests/keys/test_unique_many.py::test_a_batch_with_a_key_that_is_held_enqueues_nothing_and_says_which_are"),
    m("keys-apart", "U",
      becomes("for start, end in portions([sum(map(len, unit)) for unit in units], 1):\n"
              "    try:\n"
              "        ticket = [journal.write([r], r[0] == 0x98) for unit in units[start:end] for r in unit][-1]\n"
              "    except DiskError as exc:\n"
              "        raise (partly_done(exc, start) if start else exc) from exc.__cause__"),
      "a replaced message and its successor are never in two frames",
      "tests/keys/test_unique_many.py::test_a_batch_that_is_larger_than_a_frame_keeps_each_replacement_in_one"),
    m("key-directory-unflushed", "U3", becomes("with contextlib.suppress(FileExistsError):\n    self._disk.mkdir(layout.KEYS)"), "the name of the directory of the index is durable before a deal is",
      "play key-dealt-unflushed @423"),
    m("key-drop-unflushed", "U4", DROP, "the drop of a key's former holder is durable before another takes it",
      "play key-unflushed-drop @244"),
    m("key-drop-mine-unflushed", "U4", NEVER, "also where that stands in the same journal",
      "play key-unflushed-own @205"),
    m("key-drop-unflushed-retry", "U4", DROP, "also when the message only moves",
      "play key-unflushed-retry @648"),
    m("key-drops-sure", "U4", ALWAYS, "a drop counts as durable only when it is known to be",
      "play key-unflushed-drop @244"),
    m("key-compacted-unsynced", "U4", DROP, "an entry goes only when the end of its message is durable",
      "play key-compacted-early @917"),
    m("key-compacted-unflushed", "U2", becomes("write_aside(self._dir.disk, aside, data, flush=False)"), "a compacted list is durable before it has its name",
      "play key-compactor-killed @1279"),
    m("key-compacted-blindly", "U2", gives("asked"), "a past due is left out of the index only if it is not pending",
      "play key-compacted @1235"),
    m("key-rebuilt-unflushed", "U2", DROP, "a rebuilt list is durable before it has its name", "play key-rebuilt @1931"),
    m("key-waited-for", "U5",
      gives("self._take(key_locks, lambda: locks.take_keys(key_locks, hashes.values(), 5))"),
      "a keeper does not wait for a producer that was stopped",
      "tests/keys/test_unique.py::test_while_another_is_busy_with_the_key_a_retry_waits_and_the_keeper_does_not"),
    m("key-busy-ignored", "U5", gives("list(entered)"), "nor does it go on as if it had the lock",
      "play key-busy-retry @1"),
    m("keys-at-once", "U", becomes("now.append(id_)"), "settlements that contend for a key are written one after the other",
      "tests/test_keeper_settle.py::test_of_settlements_that_want_one_key_at_once_the_first_has_it"),
    m("key-of-the-dead", "U", without(2), "a dead letter has no key",
      "tests/keys/test_unique.py::test_a_dead_letter_that_is_added_takes_no_key"),
    m("key-revived-twice", "U", NEVER, "a dead letter is not revived into a key that is held", "play key-death @638"),
    m("key-index-first", "U7",
      becomes("early = dealt(hashes, Checkpoint())\n"
              "copy = lambda *_: {hash_: list(some) for hash_, some in early.items()}\n"
              "return self._look([], Memory.holders, hashes, copy)"),
      "a look reads the journals before the index", "play key-dealt-beside-a-look @1005"),
    m("key-file-of-before", "U7", becomes("self._checkpoint = checkpoint"),
      "a file of keys is read again under another checkpoint",
      "tests/keys/test_unique.py::test_a_handle_sees_what_deals_have_entered_since_it_read_the_index"),
    m("key-rebuilt-unseen", "U7", DROP, "and after it was made again",
      "tests/keys/test_index_open_handles.py::test_a_key_that_is_entered_again_is_held_in_a_handle_that_was_open"),
    m("key-one-look", "U", gives("[]"), "a look without a lock is repeated when a message may have moved",
      "tests/keys/test_unique.py::test_a_key_whose_message_moves_while_it_is_looked_for_is_found"),
    m("key-cancelled-once", "U", gives("[]"), "a cancel by key ends a message that moves meanwhile",
      "tests/keys/test_unique.py::test_a_message_that_moves_while_it_is_cancelled_by_its_key_is_cancelled"),
    m("key-collides", "U", without(3), "a message that is listed for a key has that key",
      "tests/keys/test_unique.py::test_two_keys_with_one_hash_do_not_hold_each_other"),
    m("key-grows", "U", DROP, "the list of a key that is used again and again stays short",
      "tests/keys/test_unique.py::test_a_debounced_storm_leaves_the_last_one_and_a_short_list"),
    m("key-file-grows", "U", DROP, "the keeper compacts the index",
      "tests/keys/test_unique.py::test_compaction_keeps_what_may_hold_a_key_and_leaves_out_the_rest"),
    m("key-in-a-batch", "U", becomes("if check_headers(headers) is None:"), "a header cannot bring a message with a key in past the index",
      "tests/keys/test_unique.py::test_the_header_of_a_message_that_was_printed_is_its_key"),
]  # fmt: skip
