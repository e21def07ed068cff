"""The command line of the campaigns: what `make crash BUDGET=20m` runs."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from filewheel.message import US_PER_S
from filewheel.timespec import parse_duration
from tests.crash.campaign import Campaign, Tally
from tests.crash.campaigns import by_name, campaigns
from tests.crash.mutant import table as mutant_table
from tests.crash.report import as_data, markdown, shape, table, words
from tests.crash.runner import Run
from tests.crash.shard import play


@click.command()
@click.option("--budget", default="2m", help="How long to run, all together: 90s, 20m, 1h.", show_default=True)
@click.option("--only", default="", help="Campaigns to run, by name, with commas between.")
@click.option("--seed", type=int, help="The number of the first round. [default: from the time]")
@click.option("--jobs", type=int, help="Processes at a time. [default: one a core]")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Where to write the result as JSON.")
@click.option("--show", "shown", type=click.Path(exists=True, path_type=Path), help="Print an earlier run's Markdown.")
@click.option("--round", "again", metavar="NAME:NUMBER", help="Play one round again, and say what it found.")
@click.option("--list", "list_", is_flag=True, help="Name the campaigns.")
@click.option("--mutants", is_flag=True, help="Print the mutants as a table.")
def main(
    budget: str,
    only: str,
    seed: int | None,
    jobs: int | None,
    path: Path | None,
    shown: Path | None,
    again: str | None,
    list_: bool,
    mutants: bool,
) -> None:
    """Try to break a wheel, for as long as the budget lets it. Exits 1 when something broke."""
    if list_:
        for campaign in campaigns():
            click.echo(f"{campaign.name:10} {campaign.title}")
    elif mutants:
        click.echo(mutant_table())
    elif shown is not None:
        click.echo(markdown(json.loads(shown.read_text())))
    elif again is not None:
        raise SystemExit(play_again(again))
    else:
        raise SystemExit(run_all(budget, only, seed, jobs, path))


def run_all(budget: str, only: str, seed: int | None, jobs: int | None, path: Path | None) -> int:
    """Run campaigns, print what came of them, and return the exit code."""
    chosen = [known(name) for name in only.split(",")] if only else campaigns()
    seed = int(time.time()) if seed is None else seed
    run = Run(chosen, parse_duration(budget) / US_PER_S, seed, progress=show if sys.stderr.isatty() else quiet)
    if jobs is not None:
        run.jobs = jobs
    click.echo(f"{shape()}; budget {budget}, seed {seed}, {run.jobs} processes", err=True)
    outcomes = run.run()
    click.echo("\r\033[K" if sys.stderr.isatty() else "", err=True, nl=False)
    data = as_data(outcomes, budget_s=run.budget_s, seed=seed, jobs=run.jobs)
    if path is not None:
        path.write_text(json.dumps(data, indent=2) + "\n")
    click.echo(table(data))
    violations = [v for o in outcomes for v in o.tally.violations]
    for violation in violations[:20]:
        click.echo(f"\n{violation.again}\n{violation.text}")
    return bool(violations)


def known(name: str) -> Campaign:
    """Return a campaign, or say which there are."""
    try:
        return by_name(name)
    except KeyError as exc:
        raise click.BadParameter(exc.args[0]) from None


def play_again(again: str) -> int:
    """Play one round again; return the exit code."""
    name, _, number = again.partition(":")
    if not number.isdigit():
        raise click.BadParameter(f"{again!r} is not NAME:NUMBER")
    campaign = known(name)
    with campaign.rig() as rig:
        tally = play(campaign, int(number), rig)
    click.echo(words(tally.counts))
    for violation in tally.violations:
        click.echo(violation.text)
    return bool(tally.violations)


def show(campaign: Campaign, tally: Tally, left_s: float) -> None:
    """Draw the line of progress on a terminal."""
    line = f"{campaign.name}: {words(tally.counts)}, {len(tally.violations)} violations, {max(left_s, 0):.0f} s to go"
    click.echo(f"\r\033[K{line[:118]}", err=True, nl=False)


_said = 0.0


def quiet(campaign: Campaign, tally: Tally, left_s: float) -> None:
    """Say every half minute how far it is, where nobody looks at a terminal."""
    global _said
    if time.monotonic() - _said > 30:
        _said = time.monotonic()
        click.echo(
            f"{campaign.name}: {words(tally.counts)}, {len(tally.violations)} violations, {left_s:.0f} s to go",
            err=True,
        )
