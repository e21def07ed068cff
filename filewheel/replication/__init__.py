"""Backup wheels: a replicator keeps them in step with their primary, and a promotion makes one the primary.

The files:

- commands and services: `members` (add and remove a backup), `status` (of a set), `replicator`, `standby`, `promote`,
  `rejoin`; with `failure_log` for the replicator and `peers` for a promotion.
- following: `link` connects one backup to its primary. `follower` reads the primary's journals (`primary_journals`),
  `shipping` writes their frames into the backup, `position` stores the progress. A mirror gets its frames from the
  producers, and `mirror_match` finds the missing ones. `backup_keeper` deals in the backup, `registration` is the
  backup's entry in the rosters.
- healing: `heal` walks over both wheels. `lap_plan` decides for each lap whether `lap_copy` or `compare` handles it.
  `extras` decides about messages that only the backup has, once `health` finds the primary intact; `reconcile` carries
  out the decision. `absorb` gives a new primary the messages that only another wheel of its set has.
"""
