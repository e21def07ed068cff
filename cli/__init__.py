"""filewheel's command line: the package `filewheel_cli` when installed, `cli` in a checkout.

`main` loads a verb when it is used. `commands/` has one file for each verb: it parses arguments, calls the library, and
prints through `show/output`. `input/` reads arguments and stdin, `show/` formats, `demo/` and `bench/` have the code of
these two verbs. Of the library it imports only public names, as the program of a user would (tests/test_layers.py).
Invariant: it works under both names, so imports inside it are relative.
"""
