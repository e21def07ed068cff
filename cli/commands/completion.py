"""`completion`: the script that makes a shell complete verbs, options and directories (ids are not completed)."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ..show.output import Output
from ..verb import verb


@verb(
    "completion",
    """
    $ filewheel completion bash > /tmp/filewheel.bash
    $ filewheel completion fish > /tmp/filewheel.fish
    """,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def command(ctx: click.Context, out: Output, shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    \b
    Write it where the shell looks:
    bash  ~/.local/share/bash-completion/completions/filewheel
    zsh   a file named _filewheel in a directory of $fpath
    fish  ~/.config/fish/completions/filewheel.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    script = found(ctx.find_root().command, {}, "filewheel", "_FILEWHEEL_COMPLETE")
    # Not source(): it runs the local shell to check its version, and the script may be for another machine.
    out.write(script.source_template % script.source_vars())
