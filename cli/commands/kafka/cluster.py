"""The options that all verbs of `kafka` share: the cluster, the delay topic, and where options come from.

Each option of these verbs has a variable, FILEWHEEL_KAFKA_ and its long name, and a key in the file of --config.
Invariant: the command line counts before the variable, and that before the file. A setting of librdkafka is never
printed: it may be a password.
"""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from ...failure import Failure
from ...verb import verb

PREFIX = "FILEWHEEL_KAFKA_"
_PROPERTIES = "properties"
_META = "filewheel.kafka.properties"
_GLOBAL = frozenset({"json", "colour", "quiet", "force", "dir", "help", "config_file", _PROPERTIES})
"""Parameters that no file sets as an option."""
_FILE_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Cluster:
    """The cluster and the delay topic that a verb was given."""

    bootstrap: str
    topic: str
    properties: Mapping[str, str]
    """Settings of librdkafka."""

    @property
    def config(self) -> dict[str, str]:
        """Return the settings of every client."""
        return {**self.properties, "bootstrap.servers": self.bootstrap}


def kafka_verb(name: str, example: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a verb of `kafka`. It gets the output and a `cluster`, and then its own options."""

    def make(function: Callable[..., None]) -> click.Command:
        @functools.wraps(function)
        def with_cluster(out: Any, bootstrap: str, topic: str, properties: tuple[str, ...], **own: Any) -> None:
            function(out, cluster=Cluster(bootstrap, topic, _merged(properties)), **own)

        return _with_variables(verb(name, example, wheel=False)(_add_options(with_cluster)))

    return make


def kafka_local_verb(name: str, example: str) -> Callable[[Callable[..., None]], click.Command]:
    """Make a function a verb of `kafka` that asks no broker. It gets the output, and then its own options."""

    def make(function: Callable[..., None]) -> click.Command:
        return _with_variables(verb(name, example, wheel=False)(_FILE_OPTION(function)))

    return make


def _with_variables(command: click.Command) -> click.Command:
    """Give each option its variable."""
    for param in _own_options(command):
        param.envvar = PREFIX + _long_name(param).replace("-", "_").upper()
    return command


def _add_options(function: Callable[..., None]) -> Callable[..., None]:
    for option in (
        _FILE_OPTION,
        click.option(
            "-X", "--property", _PROPERTIES, multiple=True, metavar="KEY=VALUE", envvar=PREFIX + "PROPERTY",
            help="A setting of librdkafka, such as security.protocol=SASL_SSL; in the file a table [properties].",
        ),
        click.option("-t", "--topic", required=True, metavar="TOPIC", help="The delay topic."),
        click.option("-b", "--bootstrap", required=True, metavar="HOST:PORT,...", help="Brokers to ask first."),
    ):  # fmt: skip
        function = option(function)
    return function


def _merged(given: tuple[str, ...]) -> dict[str, str]:
    """Return the settings of librdkafka: those of the file, and the given ones, which replace them."""
    found: dict[str, str] = dict(click.get_current_context().meta.get(_META, {}))
    for one in given:
        key, equals, value = one.partition("=")
        if not equals or not key:
            raise click.UsageError("-X takes KEY=VALUE, such as security.protocol=SASL_SSL")
        found[key] = value
    return found


def _own_options(command: click.Command) -> Iterator[click.Option]:
    for param in command.params:
        if isinstance(param, click.Option) and param.name not in _GLOBAL:
            yield param


def _long_name(param: click.Option) -> str:
    return next(name[2:] for name in param.opts if name.startswith("--"))


# -- the file -------------------------------------------------------------------------------------------------


def _read_file(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    """Make the options of a file the defaults of this verb. It may have those of other verbs, too."""
    if path is None or ctx.resilient_parsing:
        return
    group = ctx.parent.command if ctx.parent is not None else None
    verbs = list(group.commands.values()) if isinstance(group, click.Group) else []
    known = {_long_name(option) for one in verbs for option in _own_options(one)}
    mine = {_long_name(option): option for option in _own_options(ctx.command)}
    defaults: dict[str, Any] = {}
    for key, value in _load(path).items():
        if key == _PROPERTIES:
            ctx.meta[_META] = dict(_flat(path, value))
        elif key not in known:
            close = difflib.get_close_matches(key, [*known, _PROPERTIES], 1)
            hint = close[0] if close else f"`{ctx.command_path} --help`: the keys are the long options, without --"
            raise Failure("usage", f"{path}: no option is called {key!r}", hint=hint)
        elif key in mine:
            defaults[str(mine[key].name)] = _value(path, key, value, mine[key])
    ctx.default_map = defaults


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read(_FILE_BYTES_MAX).decode("utf-8"))
    except FileNotFoundError:
        raise Failure(
            "usage",
            f"{path}: there is no such file",
            hint='a file of your own with a line for each option, as topic = "delays"',
        ) from None
    except UnicodeDecodeError:
        raise Failure("usage", f"{path}: it is not UTF-8", hint="a file of --config is TOML") from None
    except tomllib.TOMLDecodeError as exc:
        raise Failure("usage", f"{path}: {exc}", hint='a file of --config is TOML: topic = "delays"') from None


def _flat(path: str, table: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """Return the settings of a table. `a.b = 1` is a table in a table for TOML, and one key for librdkafka."""
    if not isinstance(table, dict):
        raise Failure("usage", f"{path}: {_PROPERTIES} is a table", hint='[properties] and "sasl.username" = "ann"')
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(path, value, f"{before}{key}.")
        elif isinstance(value, (str, int, float)):
            yield before + key, str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise Failure("usage", f"{path}: {before}{key} is a text or a number")


def _value(path: str, key: str, value: Any, option: click.Option) -> Any:
    """Return a value as the command line would give it."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise Failure("usage", f"{path}: {key} is true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Failure("usage", f"{path}: {key} is a text or a number")
    return str(value)


_FILE_OPTION = click.option(
    "-c", "--config", "config_file", type=click.Path(), metavar="FILE", is_eager=True, expose_value=False,
    callback=_read_file, envvar=PREFIX + "CONFIG", help='A TOML file with options: topic = "delays".',
)  # fmt: skip
