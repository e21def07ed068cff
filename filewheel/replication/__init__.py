"""Backup wheels: a replicator keeps them in step with their primary, and a promotion puts one in its place.

The files, by what they do:

- the roles: `members` (add and remove a backup), `status` (how a set is), `replicator`, `standby`, `promote`, `rejoin`;
  with `failure_log` for the replicator and `peers` for a promotion.
- following: `link` joins one backup to its primary. `follower` reads the primary's journals (`primary_journals`),
  `shipping` writes their frames into the backup, `position` stores how far it came. A mirror gets its frames from the
  producers, and `mirror_match` finds those that are missing. `backup_keeper` deals in the backup, `registration` is the
  backup's entry in the rosters.
- healing: `heal` walks over both wheels. `lap_plan` decides for each lap whether `lap_copy` or `compare` handles it.
  `extras` decides about messages that only the backup has, once `health` finds the primary intact; `reconcile` carries
  that out. `absorb` gives a new primary what only another wheel of its set has.
"""
