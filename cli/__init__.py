"""filewheel's command line: the package `filewheel_cli` when installed, `cli` in a checkout.

General layout (a module imports only from groups to its left, and from `filewheel`):

    text failure | progress picture params | output | verb members | lines dissect child ring gauges following
    | batch firing stage | producer panel disaster | commands/<verb> | main

`main` knows the verbs by name and loads one when it is used; `commands/` has one file a verb, thin: it parses, asks the
library, and hands what it learns to `output`, which alone decides how that looks.
Invariant: it works under both names, so imports inside it are relative.
"""
