"""Pages of the site that are made from something else: the README, the changes, each command's help, each API page.

Owns: their text, the links that lead out of docs/, and llms.txt. Invariant: nothing here states a fact of its own.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

REPO = Path(__file__).resolve().parents[2]

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_WIDTH: Any = {"max_content_width": 80, "terminal_width": 80}
_SHIM_SOURCE = re.compile(r'src="https://[^"]+/iframe-worker/shim"')
_SHIM = Path(__file__).with_name("iframe-worker.js")
_SEARCH = Path(__file__).with_name("search.js")
log = logging.getLogger("mkdocs.hooks.filewheel")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    tops = {"index.md": "README.md", "changes.md": "CHANGELOG.md"}
    made = {name: _moved_into_docs((REPO / top).read_text("utf-8")) for name, top in tops.items()}
    made |= {"commands.md": _commands(), "decisions.md": _decisions(), **_api()}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Name where a link out of docs/ leads, in place of the link: the site has no files of the repository."""
    base = Path(page.file.src_uri).parent

    def seen(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        path = target.partition("#")[0]
        if picture or "://" in target or not path:
            return link[0]
        where = Path(os.path.normpath(REPO / "docs" / base / path))
        inside = where.relative_to(REPO / "docs") if where.is_relative_to(REPO / "docs") else None
        up = "../" * len(base.parts)
        if where in (REPO / "README.md", REPO / "CHANGELOG.md"):
            made = "index.md" if where.name == "README.md" else "changes.md"
            return f"[{text}]({up}{made}{target[len(path) :]})"
        if inside == Path("adr"):
            return f"[{text}]({up}decisions.md)"
        if inside is not None and where.is_file():
            return link[0]
        return f"{text} (`{where.relative_to(REPO)}`)" if where.exists() else link[0]

    return _outside_fences(markdown, lambda part: _LINK.sub(seen, part))


def on_post_page(output: str, page: Any, config: MkDocsConfig) -> str:
    """Take the script that searches without a server from the site itself: no page loads anything from elsewhere."""
    up = "../" * page.file.dest_uri.count("/")
    return _SHIM_SOURCE.sub(f'src="{up}assets/{_SHIM.name}"', output)


def on_post_build(config: MkDocsConfig) -> None:
    """Write what the theme does not: the script of the search, and llms.txt."""
    site = Path(config.site_dir)
    (site / "assets" / _SHIM.name).write_text(_SHIM.read_text("utf-8") + _SEARCH.read_text("utf-8"), "utf-8")
    missing = site / "404.html"  # a server shows it under any path
    missing.write_text(_SHIM_SOURCE.sub(f'src="/assets/{_SHIM.name}"', missing.read_text("utf-8")), "utf-8")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", *_for_programs(config)]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def _for_programs(config: MkDocsConfig) -> list[str]:
    """Return a line for each page of the navigation, with a sentence about it, for readers that are programs."""
    about = config.extra["about"]
    lines = []

    def add(entries: list[Any]) -> None:
        for entry in entries:
            title, where = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
            if isinstance(where, list):
                lines.extend(["", f"## {title}", ""] if entry in config.nav else [])
                add(where)
                continue
            title = title or _head((REPO / "docs" / where).read_text("utf-8"))
            if where not in about:
                log.warning("mkdocs.yml has no sentence about %s for llms.txt", where)
            lines.append(f"- [{title}]({where.removesuffix('.md')}.html): {about.get(where, '')}")

    lines.append("")
    add(config.nav)
    return lines


def _outside_fences(markdown: str, change: Any) -> str:
    parts, at = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(markdown[at:])])


def _moved_into_docs(markdown: str) -> str:
    """Return a page of the top level as one of docs/."""
    moved = {"](docs/": "](", "](CHANGELOG.md": "](changes.md", "](README.md": "](index.md"}

    def seen(part: str) -> str:
        for before, after in moved.items():
            part = part.replace(before, after)
        return part

    return _outside_fences(markdown, seen)


def _head(markdown: str) -> str:
    title = re.search(r"^# (.*)$", markdown, re.MULTILINE)
    return title[1] if title else ""


def _commands() -> str:
    """Return each command's help, as the command prints it."""
    from filewheel_cli.main import cli

    parts = ["# Every command", "", "The help of each command, as it prints it.", ""]

    def walk(command: click.Command, context: click.Context) -> None:
        parts.extend([f"## {context.command_path}", "", "```text", command.get_help(context).rstrip(), "```", ""])
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                if child is not None and not child.hidden:
                    walk(child, click.Context(child, info_name=name, parent=context, **_WIDTH))

    walk(cli, click.Context(cli, info_name="filewheel", **_WIDTH))
    return "\n".join(parts)


def _decisions() -> str:
    """Return the list of the decisions."""
    lines = ["# Decisions", "", "Each is a page at most: the context, the decision, what else was considered.", ""]
    for page in sorted((REPO / "docs" / "adr").glob("*.md")):
        title = _head(page.read_text("utf-8"))
        lines.append(f"- [{title}](adr/{page.name})")
    return "\n".join(lines) + "\n"


def _api() -> dict[str, str]:
    """Return a page for each part of the public API; together they have each exported name once."""
    import filewheel
    import filewheel.kafka
    import filewheel.testing
    import filewheel.timers
    from filewheel.errors import FilewheelError

    parts: dict[str, list[str]] = {"wheel": [], "scheduler": [], "backups": [], "errors": []}
    for name in filewheel.__all__:
        thing = getattr(filewheel, name)
        module = getattr(thing, "__module__", "")
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            part = "errors" if issubclass(thing, FilewheelError) else "scheduler"
        elif ".sets" in module or ".roster" in module:
            part = "backups"
        elif ".scheduling" in module or ".schedules" in module or "scheduler" in module:
            part = "scheduler"
        else:
            part = "wheel"
        if not name.startswith("__"):
            parts[part].append(f"filewheel.{name}")
    titles = {"wheel": "The wheel", "scheduler": "The scheduler", "backups": "Backups", "errors": "Errors"}
    pages = {f"api/{part}.md": _api_page(titles[part], sorted(names)) for part, names in parts.items()}
    for name, module in (("kafka", filewheel.kafka), ("timers", filewheel.timers), ("testing", filewheel.testing)):
        public = getattr(module, "__all__", None) or [
            n for n, thing in vars(module).items()
            if not n.startswith("_") and getattr(thing, "__module__", "") == module.__name__
        ]  # fmt: skip
        pages[f"api/{name}.md"] = _api_page(f"filewheel.{name}", [f"{module.__name__}.{n}" for n in sorted(public)])
    return pages


def _api_page(title: str, names: list[str]) -> str:
    return f"# {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)
