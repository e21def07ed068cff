"""The play of `filewheel demo`: producers and keepers as real processes, a disaster, and the judgement."""
