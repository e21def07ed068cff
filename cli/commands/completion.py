"""`completion`: the script that makes a shell complete verbs, options, directories, and words of the wheel itself.

The script for bash is filewheel's own: bash splits a word at ":" and "=", which topics and keys often contain.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from ..show.output import Output
from ..verb import verb

_BASH = r"""_filewheel_completion() {
    local word words=() glued="" last cut="" response line
    # Put together again what bash has split at ":" and "=".
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ ${#words[@]} -gt 1 && ( $word == [:=]* || $glued == *[:=] ) ]]; then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        glued=${words[-1]}
        [[ $word == *[:=] ]] || glued=""
    done
    last=${words[-1]}
    [[ $last == --*=* ]] && { words[-1]=${last%%=*}; words+=("${last#*=}"); last=${last#*=}; }
    [[ $last == *[:=]* ]] && cut=${last%"${last##*[:=]}"}
    response=$(COMP_WORDS="$(printf '%q ' "${words[@]}")" COMP_CWORD=$((${#words[@]} - 1)) \
        _FILEWHEEL_COMPLETE=bash_complete "$1" 2> /dev/null) || return 0
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            dir,*) compopt -o dirnames 2> /dev/null ;;
            file,*) compopt -o default 2> /dev/null ;;
            plain,*) line=${line#plain,}; COMPREPLY+=("${line#"$cut"}") ;;
        esac
    done <<< "$response"
}
complete -o nosort -F _filewheel_completion filewheel
"""


@verb(
    "completion",
    """
    $ filewheel completion bash > /tmp/filewheel.bash
    $ filewheel completion fish > /tmp/filewheel.fish
    """,
    wheel=False,
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="SHELL")
@click.pass_context
def command(ctx: click.Context, out: Output, shell: str) -> None:
    """Print a completion script for bash, zsh or fish.

    It completes verbs, options, directories and time zones; and topics, ids, keys and names of schedules, of the wheel
    that -C or FILEWHEEL names. Of a large wheel it offers what fires next.

    \b
    Write it where the shell looks:
    bash  ~/.local/share/bash-completion/completions/filewheel
    zsh   a file named _filewheel in a directory of $fpath
    fish  ~/.config/fish/completions/filewheel.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    if shell == "bash":
        out.write(_BASH.rstrip("\n"))
        return
    script = found(ctx.find_root().command, {}, "filewheel", "_FILEWHEEL_COMPLETE")
    # Not source(): it runs the local shell to check its version, and the script may be for another machine.
    out.write(script.source_template % script.source_vars())
