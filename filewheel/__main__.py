"""`python -m filewheel`: the installed command, found through its entry point so that the library imports no CLI."""

from importlib.metadata import entry_points

(command,) = entry_points(group="console_scripts", name="filewheel")
raise SystemExit(command.load()())
