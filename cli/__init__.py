"""filewheel's command line: the package `filewheel_cli` when installed, `cli` in a checkout.

`main` loads a verb on use. `commands/` has one file for each verb: it parses arguments, calls the library, and prints
through `show/output`. `input/` reads arguments and stdin, `show/` formats, `demo/` and `bench/` have the code of these
two verbs. It imports only public names of the library, as a user's program would (tests/test_layers.py).
Invariant: it works under both names, so imports inside it are relative.
"""
