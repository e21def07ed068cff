"""The protections of the library, each with the change of text that switches it off, and what sees it.

The tags in capitals are the rules of docs/adr/0002-the-protocol.md. `killer` is what a mutant is known to fall to:
"word N" is workload N of tests/model/exhaustive.py, "seed N" a random history, "play NAME" a directed script
(tests/model/directed.py), "race NAME N" one of tests/model/races.py, anything else a test; "@N" says how many states the
search (hunt.py) had tried when it fell. The campaign in mutant.py plays it again, and the mutant must fall.
Imports nothing of the library: this is read before it is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """Text of a module, and what takes its place."""

    module: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """One protection, switched off."""

    name: str
    rule: str
    what: str
    """What the protection does."""
    killer: str
    states: int
    """How many states the search took to find it; 0 for a test."""
    changes: tuple[Change, ...]


def _m(name: str, rule: str, what: str, killer: str, module: str, old: str, new: str, *more: str) -> Mutant:
    texts = [module, old, new, *more]
    changes = tuple(Change(*texts[i : i + 3]) for i in range(0, len(texts), 3))
    killer, _, states = killer.partition(" @")
    return Mutant(name, rule, what, killer, int(states or 0), changes)


MUTANTS: list[Mutant] = [
    # -- the producer's journal ------------------------------------------------------------------------------
    _m("no-flush", "E3", "a commit is flushed before the call returns", "word 22378 @1",
       "segment", "        self._disk.fdatasync(self.fd)\n", "        pass\n"),
    _m("no-name-flush", "E2", "a segment's name is durable before anything in it counts", "word 22378 @1",
       "segment", "            disk.sync_dir(layout.JOURNAL)\n", "            pass\n"),
    _m("lock-late", "E1", "a segment is locked before it has its name", "race move 1 @98",
       "segment", "                disk.lock(fd, wait=True)\n                disk.rename(tmp, self.name)\n",
       "                disk.rename(tmp, self.name)\n                disk.lock(fd, wait=True)\n"),
    _m("no-lock", "E1 E4", "a segment in use is locked", "word 15252 @542",
       "segment", "                disk.lock(fd, wait=True)\n", "                pass\n"),
    _m("lock-let-go", "E4", "the lock is held as long as the segment may grow", "word 15252 @542",
       "segment", "        return fd\n\n    def _remove", "        disk.unlock(fd)\n        return fd\n\n    def _remove"),
    _m("lock-no-wait", "E1", "a writer waits while the keeper's sweep holds its new file", "race cancel 51 @11996",
       "segment", "                disk.lock(fd, wait=True)\n", "                disk.lock(fd, wait=False)\n"),
    _m("two-frames", "E3", "a reschedule's drop and put are one frame", "word 22686 @210",
       "journal", "            self._write(segment, drop + PUT_PREFIX + id_ + rest, 1, 1, first, last)\n",
       "            self._write(segment, drop, 0, 1, dropped, dropped)\n"
       "            self._write(segment, PUT_PREFIX + id_ + rest, 1, 0, id_, id_)\n"),
    _m("two-frames-retry", "E3", "a retry's drop and put are one frame", "word 19413 @449",
       "housekeeper", "        self.spend(lambda: self._ledger.write(records, puts))\n",
       "        for i, record in enumerate(records):\n"
       "            self._ledger.write([record], puts if i == len(records) - 1 else 0)\n"),
    _m("rotate-unflushed", "O1", "a segment is flushed before its writer goes on in the next", "race retry 1 @124",
       "appender", "        self._flush_held()  # O1: before anyone can be released by a flush of the next segment\n", ""),
    _m("retire-unflushed", "O1", "a segment whose write failed is flushed before its writer becomes another", "tests/test_guards.py::test_what_was_enqueued_before_a_failed_write_is_durable_when_a_later_call_says_so",
       "appender", "            self._flush_held()\n            end = self.position\n            self._let_go",
       "            end = self.position\n            self._let_go"),
    _m("flush-counts-later", "O1", "a flush vouches only for what was written before it began", "race threads 21 @4762",
       "appender", "            self._durable = target\n", "            self._durable = self._written\n"),
    _m("rotate-under-flush", "O1", "a segment is not let go while another thread flushes it", "race threads 33 @7598",
       "appender", "            if self._flushing:\n                # Its descriptor", "            if False:\n                # Its descriptor"),
    _m("write-after-failure", "E3", "nothing is written to a segment where a write failed", "tests/test_disk_trouble.py::test_ctrl_c_in_a_write_costs_no_other_message_though_the_keeper_read_what_was_written",
       "segment", "        self.failed = True\n        try:\n            self._disk.pwrite(", "        try:\n            self._disk.pwrite("),
    _m("failure-not-cut-off", "E3", "what a failed write left is cut off", "tests/test_guards.py::test_a_write_that_fails_after_it_got_there_leaves_nothing_of_what_was_refused",
       "segment", "            self.cut_off()\n            raise disk_error", "            raise disk_error"),
    _m("flush-again", "F", "a flush that failed is never tried again", "tests/test_disk_trouble.py::test_a_failed_flush_poisons_the_handle_and_is_never_tried_again",
       "appender", "        self._broken = Poisoned(\n", "        raise Poisoned(\n"),
    _m("error-ignored", "F", "an error of a flush is an error of the call", "tests/test_disk_trouble.py::test_a_keeper_whose_journal_cannot_be_flushed_stops_firing_and_says_why",
       "appender", "        except OSError as exc:\n            failed = exc\n        finally:\n", "        except OSError:\n            done = True\n        finally:\n"),
    _m("synced-too-much", "I2", "a frame calls durable only what was flushed", "race takeover 1 @199",
       "appender", "        return max(0, self._durable - self._first)\n", "        return max(0, self._written - self._first)\n"),
    _m("no-seal", "I2", "a segment is ended by a seal, so that damage to its last frames is seen", "tests/test_damage.py::test_damage_in_the_last_frame_of_a_closed_journal_is_proven_by_its_seal",
       "appender", "        if segment.offset and not segment.failed and self._durable == self._written:\n", "        if False:\n"),
    _m("same-name", "E5", "two writers that drew one name do not share a segment", "tests/test_guards.py::test_a_writer_that_draws_the_name_of_another_does_not_write_into_its_segment",
       "segment", "        if disk.identity(self.name) is not None:\n", "        if False:\n"),
    _m("same-ids", "E5", "a writer's ids start at a random place", "tests/test_guards.py::test_two_writers_of_one_name_give_different_ids",
       "writer", "        self.seq = int.from_bytes(entropy(4), \"big\") % (SEQ_END // 2)\n", "        self.seq = 0\n"),
    _m("close-unflushed", "E3", "closing flushes what was written with sync=\"never\"", "play close-unflushed @23",
       "appender", "                if self._broken is None:\n                    self._flush_held()\n            finally:",
       "                pass\n            finally:"),
    _m("interval-never", "E3", "sync=0.1 flushes", "tests/test_wheel.py::test_sync_never_and_interval_are_durable_after_flush_and_close",
       "appender", "                self._flusher.start()\n", "                pass\n"),
    _m("flusher-too-late", "E3", "a close that comes before the flush of sync=0.1 is no error", "tests/test_guards.py::test_a_flusher_that_wakes_just_before_its_handle_is_closed_is_no_error_of_the_close",
       "appender", "            except Closed:\n                return  # `close` came between, and has flushed everything\n", ""),
    # -- frames ----------------------------------------------------------------------------------------------
    _m("no-header-sum", "E3", "a header is checked", "seed 17 @4947",
       "frame", "zlib.crc32(head[8:], self._seed ^ (self.pos >> 3 & 0xFFFFFFFF)) != head_sum", "False"),
    _m("no-body-sum", "E3", "a body is checked", "word 13298 @323",
       "frame", "zlib.crc32(body, self._seed) != body_sum", "False"),
    _m("no-salt", "E3", "a frame of another file or wheel is no frame here", "tests/test_frame.py::test_a_frame_of_another_wheel_does_not_verify",
       "layout", "    return zlib.crc32(name.encode(), zlib.crc32(salt))\n", "    return 0\n"),
    _m("no-place", "E3", "a frame counts only at its own offset", "tests/test_frame.py::test_bytes_put_between_frames_leave_only_what_is_still_at_its_place",
       "frame", "zlib.crc32(head[8:], self._seed ^ (self.pos >> 3 & 0xFFFFFFFF)) != head_sum",
       "zlib.crc32(head[8:], self._seed) != head_sum",
       "loops", "    head = zlib.crc32(summed, seed ^ (offset >> 3 & 0xFFFFFFFF))\n", "    head = zlib.crc32(summed, seed)\n"),
    _m("no-body-limit", "E3", "a length is bounded before anything is read", "tests/test_frame.py::test_a_length_over_the_limit_allocates_nothing_even_if_its_checksum_holds",
       "frame", "        if size > BODY_BYTES_MAX:\n            return \"body length over the limit\"\n", ""),
    _m("holes-read", "D", "a hole is stepped over, however large it is", "tests/test_hostile.py::test_a_hole_of_a_terabyte_under_a_valid_name_keeps_nobody_busy",
       "frame", "            if is_blank and self._data_from is not None:\n", "            if False:\n"),
    _m("drops-by-place", "R6", "a bad region is searched for the next frame that verifies", "tests/test_damage.py::test_damage_in_the_middle_of_a_journal_is_proven_by_what_follows",
       "frame", "                    if isinstance(probe._read(), Frame):\n", "                    if False:\n"),
    # -- ingest ----------------------------------------------------------------------------------------------
    _m("live-skips", "I1", "while the writer lives, reading stops at the first frame that does not verify", "play live-skips @31",
       "tail", "                if item.at_end or (not dead and not proves(item)):\n", "                if item.at_end:\n",
       "tail", "resync=dead or look_ahead)", "resync=True)"),
    _m("no-second-look", "I1", "what a look beside a writer did not find is read anew before it counts as damaged", "play no-second-look @31",
       "tail", " and read_one(gap.offset) is None\n", "\n"),
    _m("read-before-lock", "I1", "the lock is tested before the read that relies on the answer", "race rotation 2 @291",
       "tail", "            free = (test_lock or n + 1 in segments) and self._lock_is_free(fd)\n"
       "            yield from self._read(name, fd, dead=free, look_ahead=test_lock, on_damage=on_damage)\n",
       "            yield from self._read(name, fd, dead=False, look_ahead=test_lock, on_damage=on_damage)\n"
       "            free = (test_lock or n + 1 in segments) and self._lock_is_free(fd)\n"),
    _m("dead-stops", "I2", "a dead writer's bad region is stepped over", "tests/test_damage.py::test_damage_in_the_middle_of_a_journal_is_proven_by_what_follows",
       "tail", "                if item.at_end or (not dead and not proves(item)):\n", "                if True:\n"),
    _m("old-listing", "I3", "a writer that ended is looked for a next segment anew", "play old-listing @39",
       "tail", "            segments = present()  # the next one was made before the lock became free\n", ""),
    _m("one-listing", "I3", "before a segment is passed by because it is not listed, there is another listing", "tests/test_guards.py::test_the_first_segment_of_a_writer_that_a_keeper_s_listing_misses_is_read_before_the_second",
       "tail", "                if missed != n and any(s > n for s in segments):\n", "                if False:\n"),
    _m("damage-unreported", "I2", "what had been durable and is missing is reported", "tests/test_damage.py::test_damage_in_the_middle_of_a_journal_is_proven_by_what_follows",
       "ledger", "        if damage.proven:\n", "        if False:\n"),
    # -- recovery --------------------------------------------------------------------------------------------
    _m("no-sync-first", "R1", "what a dead keeper left in the page cache is flushed before it is relied on", "play no-sync-first @480",
       "ledger", "            self.disk.sync_all()\n", "            pass\n"),
    _m("tmp-stays", "K5", "what a dead writer left under a temporary name is removed", "word 15595 @136",
       "ledger", "            if not layout.is_segment_tmp(last):\n                continue\n", "            continue\n"),
    _m("covered-stays", "R5", "a covered segment that came back is removed before its entry is forgotten", "word 19409 @385",
       "ledger", "                if covered is not None and parsed[1] < covered.segment:\n", "                if False:\n"),
    _m("unnamed-stays", "R2", "files that the checkpoint does not name are removed", "word 17750 @36",
       "ledger", "                self._sweep_laps(found)\n", ""),
    _m("missing-unreported", "R2", "a file that is named and not there is reported", "tests/test_guards.py::test_a_file_that_was_taken_away_is_reported_when_the_keeper_starts_not_when_its_time_comes",
       "ledger", "                self._miss_laps(found)\n", ""),
    _m("doubt-ignored", "K1", "without a checkpoint that can be read, everything found counts", "tests/test_damage.py::test_a_checkpoint_that_cannot_be_read_loses_nothing",
       "ledger", "            if self.manifest.doubt:\n", "            if False:\n"),
    _m("no-old-checkpoint", "K1", "the checkpoint before is kept", "tests/test_damage.py::test_both_checkpoints_gone_loses_nothing",
       "manifest", "        disk.link(layout.CHECKPOINT, layout.CHECKPOINT_OLD)\n", "        pass\n"),
    # -- the deal --------------------------------------------------------------------------------------------
    _m("one-look", "D1", "the deal looks once more for puts whose drops it has", "play one-look @66",
       "cut", "        ledger.ingest()\n        above = ", "        above = "),
    _m("unmatched-forgotten", "D1", "a drop whose put is still to come is remembered", "race takeover 22 @5188",
       "deal", "            new.unmatched = sorted(still if coming is None else still & coming)\n", "            new.unmatched = []\n"),
    _m("journals-unflushed", "D2 X1", "journals are flushed before what they say is relied on", "play others-unflushed @77",
       "deal", "        self._flush_journals(seen)\n", ""),
    _m("others-unflushed", "X1", "also the drops in others' journals are durable before a file goes", "play others-unflushed @75",
       "deal", "            if writer != ledger.own.writer:\n                names +=", "            if False:\n                names +="),
    _m("own-unflushed", "X1", "the keeper's own drops are durable before a file goes", "play own-unflushed @79",
       "deal", "        ledger.own.flush()\n        names = []", "        names = []"),
    _m("later-drops", "D3", "a put is left out only for a drop below the same cut", "play later-drops @77",
       "cut", "            if frame.puts:\n                ids.update(ids_of(_records(frame)[0]))\n",
       "            if frame.puts:\n                ids.update(ids_of(_records(frame)[0]))\n"
       "            cut.drops.update((r[4:20], r) for r in _records(frame)[1])\n"),
    _m("drops-left-out", "D4", "a drop whose put is in a file is dealt", "word 22378 @1",
       "deal", "            mine = drops[dropped:drop_upto] if length else []\n", "            mine = []\n"),
    _m("doubt-drops", "D4", "in doubt a drop is dealt although its put was left out", "tests/test_guards.py::test_without_a_checkpoint_a_message_whose_cancel_is_in_a_journal_does_not_come_back",
       "deal", "if i not in matched or base.doubt]", "if i not in matched]"),
    _m("slots-unflushed", "D6", "dealt files are durable before the checkpoint", "word 17750 @11",
       "deal", "                self._disk.fdatasync(fd)\n", "                pass\n"),
    _m("slot-names-unflushed", "D6", "the names of dealt files are durable before the checkpoint", "word 17750 @11",
       "deal", "        for name in self._touched_dirs | self._ledger.unlinked_in:\n", "        for name in self._ledger.unlinked_in:\n"),
    _m("lap-names-unflushed", "D6", "the name of a new lap directory is durable before the checkpoint", "word 24972 @131",
       "deal", "        self._new_dirs.add(lap)\n        self._touched_dirs.add(layout.LAPS)\n", "        self._new_dirs.add(lap)\n"),
    _m("unlinks-unflushed", "D6 K4", "unlinks are durable before the next checkpoint, which forgets what they were", "race move 5 @1064",
       "deal", "        for name in self._touched_dirs | self._ledger.unlinked_in:\n", "        for name in self._touched_dirs:\n"),
    _m("tail-kept", "D6", "bytes past the covered length are cut off before the file grows", "tests/test_slot.py::test_what_lies_above_the_covered_length_is_cut_off_by_the_next_append",
       "slot", "        if disk.size(fd) > length:\n            disk.truncate(fd, length)\n", ""),
    _m("appended-at-end", "D6", "a file is appended to at its covered length", "word 13426 @6435",
       "slot", "        if disk.size(fd) > length:\n            disk.truncate(fd, length)\n        disk.pwrite(fd, data, length)\n",
       "        disk.pwrite(fd, data, disk.size(fd))\n"),
    _m("lap-not-emptied", "L2", "a lap that is opened brings along what it holds", "word 14762 @1756",
       "deal", "                self._write_records(window.puts, [], new, lap)\n", ""),
    _m("two-homes", "D5", "a drop goes to the file that has its put: a lap keeps its slots when it is past", "word 22378 @1",
       "deal", "        if second in new.slots or self._has_slots(lap, new):\n            return False\n", ""),
    # -- the checkpoint --------------------------------------------------------------------------------------
    _m("checkpoint-unflushed", "K1", "a checkpoint is durable before it has its name", "word 10560 @16",
       "manifest", "        disk.fdatasync(fd)\n", "        pass\n"),
    _m("checkpoint-name-unflushed", "K1", "its name is durable before anything that it covers is removed", "word 17750 @53",
       "manifest", "    disk.sync_dir(\"\")\n", "    pass\n"),
    _m("checkpoint-in-place", "K1", "a checkpoint replaces the one before as a whole", "word 22330 @71",
       "manifest", "    fd = disk.open(layout.CHECKPOINT_TMP, \"rw\")\n", "    fd = disk.open(layout.CHECKPOINT, \"rw\")\n",
       "manifest", "    disk.rename(layout.CHECKPOINT_TMP, layout.CHECKPOINT)\n", ""),
    _m("checkpoint-first", "K1", "a checkpoint comes after everything that it covers is durable", "word 17750 @32",
       "deal", "                self._sync()\n            self._expire(new, finished)\n"
       "            prepare_manifest(self._disk, new, self._dir.seed)\n",
       "                pass\n            self._expire(new, finished)\n"
       "            prepare_manifest(self._disk, new, self._dir.seed)\n"
       "            place_manifest(self._disk)\n            prepare_manifest(self._disk, new, self._dir.seed)\n            self._sync()\n"),
    _m("segments-first", "K2", "segments are removed only after the checkpoint that covers them", "word 19409 @343",
       "deal", "            prepare_manifest(self._disk, new, self._dir.seed)\n",
       "            for w, p in cut.positions.items():\n                for n in range(ledger.tails[w].covered.segment, p.segment):\n"
       "                    ledger.unlink_file(layout.segment(w, n))\n            prepare_manifest(self._disk, new, self._dir.seed)\n"),
    _m("files-first", "K2", "finished files are removed only after the checkpoint without them", "word 19409 @343",
       "deal", "            prepare_manifest(self._disk, new, self._dir.seed)\n",
       "            for name in self._gone:\n                ledger.unlink_file(name)\n            prepare_manifest(self._disk, new, self._dir.seed)\n"),
    _m("live-removed", "K3", "a segment that its writer may still append to stays", "word 15595 @167",
       "deal", "            self._unlink_segments(ledger.tails[writer], position, ended=writer in cut.ended)\n",
       "            self._unlink_segments(ledger.tails[writer], position, ended=position.offset > 0)\n"),
    _m("entry-early", "K4", "a writer's entry stays until its segments are gone for good", "word 14472 @4501",
       "deal", " | cut.positions\n", " | {w: p for w, p in cut.positions.items() if w not in cut.ended}\n"),
    # -- firing ----------------------------------------------------------------------------------------------
    _m("no-look", "F1", "a claim looks at every journal before anything starts", "race cancel 1 @63",
       "head", "        self._ledger.ingest()\n        passes", "        passes"),
    _m("early-drop-forgotten", "F1", "a drop that is read before its put is remembered", "play early-drop-forgotten @27",
       "head", "                    self._early[id_] = self._ledger.passes\n", "                    pass\n"),
    _m("no-clock", "F2", "due is compared with the clock at the moment of the claim", "word 17762 @62",
       "head", "        puts = self.ready.take(id_floor(now_us + 1), limit)\n", "        puts = self.ready.take(self.ready.frontier, limit)\n"),
    _m("past-passes-by", "F3", "what arrives below the frontier joins what is loaded", "race rotation 2 @289",
       "head", "        if near:\n            self._admit(", "        if False:\n            self._admit("),
    _m("claimed-again", "F3", "what is claimed is not offered again by the same keeper", "play claimed-again @1583",
       "head", "            if self.claims or self._early:\n                puts = [r for r in puts if r[ID] not in self.claims and r[ID] not in self._early]\n", ""),
    _m("frontier-stays", "F3", "what is let go of memory is loaded again", "seed 2 @585",
       "ready", "            self.frontier = id_after(self._puts[-1][ID])\n", "            pass\n"),
    _m("cancel-and-retry", "A2", "what was cancelled while it ran is not put back", "tests/test_keeper.py::test_a_cancel_while_it_runs_keeps_it_from_being_retried",
       "settler", "already; nothing is put.\n        cancelled = id_ in self._head.cancelled\n", "already; nothing is put.\n        cancelled = False\n"),
    _m("cancel-unseen", "F1", "a cancel of what is in memory takes it out", "race move 1 @103",
       "head", "            here = self.ready.discard(unknown)\n", "            here = set(unknown)\n"),
    _m("retry-unseen", "A1", "a retry that is due before the frontier joins what is loaded", "race arrival 1 @148",
       "settler", "        if near:\n", "        if False:\n"),
    _m("claimed-is-finished", "X1", "a file of which something is claimed stays", "word 22378 @1",
       "head", "<= frontier and s not in waiting}", "<= frontier}"),
    _m("lap-claimed-is-finished", "X1", "a lap file of which something is claimed stays", "word 825 @25912",
       "head", "<= frontier and lap not in busy", "<= frontier"),
    _m("twice-in-window", "F3", "an id that lies in two files counts once", "tests/test_guards.py::test_without_a_checkpoint_a_message_that_is_in_a_journal_and_in_a_file_fires_once",
       "window", "        self._puts = list(by_id.values())\n",
       "        self._puts = [r for r in self._puts if r[ID] not in self._drops]\n"),
    _m("two-keepers", "R1", "one process at a time is the keeper", "race takeover 1 @188",
       "owner", "            if not self._disk.lock(fd, wait=wait):\n", "            if False:\n"),
    _m("tidy-beside-keeper", "R1", "a producer tidies only while no keeper runs", "seed 1 @65",
       "tidy", "        owner.take(\"tidy\", wait=False)\n", "        pass\n"),
    _m("dirs-stay", "X4", "the empty directory of a past lap is removed", "tests/test_guards.py::test_the_directory_of_a_lap_that_is_past_goes_while_the_keeper_runs",
       "deal", "        ledger.remove_empty_dirs()\n", ""),
    _m("acks-unflushed", "A1", "acknowledgements are flushed a moment later", "word 19385 @4543",
       "housekeeper", "            self._ledger.own.flush()\n        now = ", "            pass\n        now = "),
    _m("ack-durable-unflushed", "A1", "ack(sync=\"always\") returns after its flush", "word 19411 @3526",
       "keeper", "        if sync == \"always\":\n            self._ledger.own.flush()\n        return len(ids)\n", "        return len(ids)\n"),
    _m("late-chunk", "D1", "a chunk ends where it was read to", "race threads 1 @23",
       "cut", "                position = end\n", "                position = limits[writer]\n"),
    # -- readers and disks -----------------------------------------------------------------------------------
    _m("snapshot-once", "S", "a reader starts again when a deal was committed meanwhile", "play snapshot-once @53",
       "snapshot", "            if self._dir.disk.identity(layout.CHECKPOINT) == before:\n                break\n", "            break\n"),
    _m("finder-once", "S", "a finder starts again when a deal was committed meanwhile", "tests/test_finder.py::test_a_deal_that_is_committed_during_a_look",
       "finder", "                        if self._frames.are_current():\n", "                        if True:\n"),
    _m("finder-file-gone", "S", "a finder starts again when a file has gone and there is another checkpoint",
       "tests/test_finder.py::test_a_lap_that_is_opened_into_seconds_just_before_it_is_read",
       "frames", "            if not self.are_current():\n", "            if False:\n"),
    _m("finder-passes-by", "S", "a finder looks again where a frame may be in the middle of being written", "tests/test_finder.py::test_a_frame_that_is_half_written_is_found_when_it_is_whole",
       "finder", "                file.is_blank = item.blank\n", "                file.is_blank, file.pos = item.blank, item.end\n"),
    _m("finder-no-second-look", "S", "what a later frame shows to be damage is looked at once more", "tests/test_finder.py::test_a_frame_of_which_a_look_saw_only_a_part_is_not_passed_by",
       "finder", "            if again is None:\n", "            if True:\n"),
    _m("finder-covered-kept", "S", "a finder forgets of a journal what was covered", "tests/test_finder.py::test_a_cancel_that_was_dealt_together_with_its_put_stays_one",
       "finder", "            if file is not None and file.start != start:\n", "            if False:\n"),
    _m("finder-unmatched", "S", "a drop that the checkpoint carries on counts", "tests/test_finder.py::test_a_drop_that_was_dealt_before_its_put_counts",
       "finder", " if i in self._unmatched}", " if False}"),
    _m("finder-old-file", "S", "a finder that missed a deal reads every file anew", "tests/test_finder.py::test_a_second_that_went_and_came_again_is_another_file",
       "finder", "        if manifest.deal != self._manifest.deal + 1:\n", "        if False:\n"),
    _m("finder-old-run", "S", "of a run that has grown the ids are read anew", "tests/test_finder.py::test_a_file_that_grows_while_it_is_known",
       "finder", "                self._unload(file.add(item))\n", "                file.add(item)\n"),
    _m("finder-one-copy", "S", "a put that cannot be read is looked for elsewhere", "tests/test_finder.py::test_a_put_of_which_the_frame_was_damaged_since_is_taken_from_elsewhere",
       "finder", "        if len(found) < len(places):\n", "        if False:\n"),
    _m("finder-half-learned", "S", "what an interrupt left half learned is forgotten", "tests/test_finder.py::test_an_interrupt_or_an_error_leaves_nothing_half_learned",
       "finder", "                        self._forget()  # an interrupt (Ctrl-C) too may have left it half learned\n", ""),
    _m("finder-grows", "S", "a finder's memory is bounded", "tests/test_finder.py::test_over_its_limit_an_index_still_answers_and_does_not_grow",
       "finder", "        if self._ids > IDS_MAX and run.puts is not None:\n", "        if False:\n"),
    _m("verify-one-listing", "S", "verify lists the journals once more, for what a listing beside a writer missed", "tests/test_damage.py::test_a_segment_that_a_listing_beside_its_writer_misses_is_no_damage",
       "verify", "first | set(self._disk.listdir(layout.JOURNAL))", "first"),
    _m("verify-beyond", "S", "verify stops where the first listing ended: of what came since, one may be missing", "tests/test_damage.py::test_a_segment_that_a_listing_beside_its_writer_misses_is_no_damage",
       "verify", "            if parsed and parsed[1] > ends.get(parsed[0], 0):\n", "            if False:\n"),
    _m("short-write", "D", "a short write is completed or is an error", "tests/test_disk_trouble.py::test_on_a_really_full_disk_acks_and_cancels_go_on_and_room_comes_back",
       "disk", "    while done < len(data):\n", "    while False:\n"),
    _m("links-followed", "D", "a symbolic link in the wheel is not followed", "tests/test_damage.py::test_a_link_in_place_of_a_slot_is_not_followed",
       "disk", "os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK\n_MODES", "os.O_CLOEXEC | os.O_NONBLOCK\n_MODES"),
    _m("pipes-opened", "D", "what is no regular file is left alone", "tests/test_directory.py::test_a_wheel_json_that_is_no_regular_file_is_not_followed",
       "disk", "        if not stat.S_ISREG(os.fstat(fd).st_mode):\n            os.close(fd)\n", "        if False:\n            os.close(fd)\n"),
    _m("lock-in-child", "D", "a forked child does not keep its parent's locks", "tests/test_guards.py::test_a_child_that_outlives_a_killed_keeper_does_not_keep_the_next_one_out",
       "disk", "os.register_at_fork(after_in_child=_in_child)\n", ""),
    _m("lock-not-freed", "D", "closing frees the lock although a child has a copy", "tests/test_guards.py::test_a_lock_is_free_when_its_file_is_closed_though_a_child_that_was_just_forked_has_it_open",
       "disk", "            self.unlock(fd)\n        os.close(fd)\n", "            self._locked.discard(fd)\n        os.close(fd)\n"),
    _m("fork-unseen", "D", "a handle of the parent is an error in a child", "tests/test_wheel.py::test_a_forked_child_gets_an_error_and_the_parent_goes_on",
       "wheel", "        if journal is None or self._closed or os.getpid() != self._pid:\n", "        if journal is None or self._closed:\n"),
    _m("full-half-dealt", "D", "a deal that met a full disk gives its room back", "tests/test_guards.py::test_a_deal_for_which_there_is_no_room_leaves_no_files_behind",
       "deal", "            self._undo()\n", ""),
    _m("no-ballast", "D", "acknowledgements go on when the disk is full", "tests/test_disk_trouble.py::test_on_a_really_full_disk_acks_and_cancels_go_on_and_room_comes_back",
       "housekeeper", "            if not self._give_ballast():\n                raise\n            log.critical", "            if True:\n                raise\n            log.critical"),
    _m("settings-unchecked", "E3", "the wheel's settings are checked", "tests/test_damage.py::test_a_damaged_wheel_json_is_read_from_its_copy_and_repaired",
       "directory", "    if not mark or tail != b\"%d\\n}\\n\" % zlib.crc32(body + b\"\\n}\"):\n", "    if not mark:\n"),
    # -- settlements and the scheduler ---------------------------------------------------------------------------
    _m("cancelled-succeeded", "A2", "nothing succeeds a message that was cancelled while it ran", "tests/test_settlement.py::test_of_a_message_that_was_cancelled_while_it_ran_nothing_goes_on_but_what_its_transaction_enqueued",
       "settlement", "    if settlement.successor is not None and not cancelled:\n", "    if settlement.successor is not None:\n"),
    _m("two-frames-settled", "E3", "an acknowledgement and what comes of it are one frame", "tests/test_settlement.py::test_what_became_of_a_batch_and_all_that_comes_of_it_are_one_frame",
       "settler", "            self._housekeeper.write(records + puts, len(puts))\n",
       "            self._housekeeper.write(records, 0)\n            self._housekeeper.write(puts, len(puts))\n"),
    _m("settled-unwritten", "A1", "what could not be written is claimed as before", "tests/test_settlement.py::test_on_a_full_disk_everything_stays_claimed_and_is_written_when_there_is_room",
       "settler", "                self.later.pop(settlement.id, None)\n            raise", "                pass\n            raise"),
    _m("ack-before-return", "J", "a message is acknowledged after its handler returned", "tests/scheduling/test_scheduler_calls.py::test_a_call_is_acknowledged_only_when_its_handler_has_returned",
       "scheduling.dispatcher", "        self._runners[terms.where].start(call)\n",
       "        self._keeper.ack([m.id for m in messages])\n        self._runners[terms.where].start(call)\n"),
    _m("transaction-dropped", "J", "what a job enqueued in a transaction is written when it is acknowledged", "tests/scheduling/test_scheduler_transactions.py::test_a_chain_loses_no_link_and_doubles_none_wherever_the_program_dies",
       "scheduling.verdict", "\"acked\", puts=puts, successor=successor", "\"acked\", successor=successor"),
    _m("transaction-of-a-block", "J", "what was enqueued in a block that failed is not written", "tests/scheduling/test_scheduler_transactions.py::test_a_block_that_failed_and_was_caught_writes_nothing_and_the_next_block_does",
       "scheduling.job", "            yield transaction\n            self._messages += transaction.messages\n        finally:\n",
       "            yield transaction\n        finally:\n            self._messages += transaction.messages\n"),
    _m("late-return-counts", "J", "what a call returns after its time-out counts for nothing", "tests/scheduling/test_scheduler_threads.py::test_a_pool_keeps_its_size_whatever_is_given_up_and_whatever_ends_later",
       "scheduling.threads", "            if not call.end():\n", "            if not call.end() and False:\n"),
    _m("stuck-not-replaced", "J", "another thread takes the place of one that is stuck", "tests/scheduling/test_scheduler_threads.py::test_a_pool_keeps_its_size_whatever_is_given_up_and_whatever_ends_later",
       "scheduling.threads", "        if not self._stopping:\n            self._add_thread()\n", ""),
    _m("late-after-wait", "J", "a call that became too late while it waited is not begun", "tests/scheduling/test_scheduler_late.py::test_what_became_too_late_while_it_waited_for_its_turn_is_not_begun",
       "scheduling.task", "            if why is not None:\n", "            if False:\n"),
    _m("late-by-the-second-due", "J", "what a limit put off is late by its first due", "tests/scheduling/test_scheduler_late.py::test_what_a_limit_put_off_is_late_by_its_first_due",
       "scheduling.options", "        due_us = due_us if self.was_due_us is None else self.was_due_us\n", ""),
    _m("coalesced-later", "J", "a call does not do for one that comes due after it began", "tests/scheduling/test_scheduler_late.py::test_one_that_comes_due_after_the_call_began_gets_a_call_of_its_own",
       "scheduling.overdue", " and message.due_us <= begun_us and", " and"),
    _m("held-fills-the-room", "J", "a backlog that is held back leaves room for what comes due", "tests/scheduling/test_scheduler_late.py::test_what_comes_due_meanwhile_is_not_held_up_by_the_backlog",
       "scheduling.dispatcher", "min(HELD_MAX, in_flight // 4)", "HELD_MAX"),
    _m("overtaken", "J", "what was deferred is not overtaken by what was behind it", "tests/scheduling/test_scheduler_limits.py::test_calls_begin_at_the_rate_and_in_order_and_what_is_too_much_goes_back_into_the_wheel",
       "scheduling.lane", "(count if now_us >= self._first_us else count * 2) >=", "count >=",
       "scheduling.dispatcher", "            self._start_from(lane, now_us)  # which may make room\n", "            pass\n"),
    _m("room-lies-idle", "J", "little room is made use of as well", "tests/scheduling/test_scheduler_limits.py::test_many_limited_handlers_with_backlogs_leave_room_for_one_without",
       "scheduling.dispatcher", "room * 4 >= self._limit or must or waited_us > _TICK_S * US_PER_S", "room * 4 >= self._limit"),
    _m("full-outcome-lost", "J", "an outcome that cannot be written is kept until there is room", "tests/scheduling/test_scheduler_trouble.py::test_on_a_full_disk_outcomes_are_kept_and_written_when_there_is_room",
       "scheduling.dispatcher", "        self._verdicts = [(m, v) for m, v in self._verdicts if self._keeper.holds(m.id)]\n", "        self._verdicts = []\n"),
    _m("revived-with-its-deadline", "J", "a revived dead letter has no deadline that has passed", "tests/scheduling/test_scheduler_failures.py::test_a_message_that_died_of_its_deadline_can_be_revived_and_is_called",
       "unique", "if k not in (REASON, DEADLINE)}", "if k != REASON}"),
    _m("cancels-itself", "J", "a call that its own handler cancelled is no call that was stopped", "tests/scheduling/test_scheduler_loop.py::test_a_coroutine_that_cancels_itself_has_failed_and_is_not_claimed_for_ever",
       "scheduling.loop", "            if self._stopping:\n", "            if True:\n"),
]  # fmt: skip


def by_name(name: str) -> Mutant:
    """Return one mutant."""
    return next(m for m in MUTANTS if m.name == name)
