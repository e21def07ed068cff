"""The two plays of `filewheel demo`, with producers and keepers as real processes.

`lost_keeper` kills the keeper, `lost_disk` deletes the primary's directory. `stage` starts the processes, `live` and
`panel` and `ring` draw, `proof` judges by the records of the processes.
"""
