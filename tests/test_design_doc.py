"""docs/design.md is checked as it stands: its bytes are made again, and each function that the pages name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import msgpack
import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.disk import SYSTEM
from filewheel.format.frame import HEADER_BYTES
from filewheel.laps.deal import Deal
from filewheel.message import US_PER_S
from tests.conftest import assert_whole
from tests.golden import SALT, Clock, named
from tests.support import REPO

DESIGN = (REPO / "docs" / "design.md").read_text(encoding="utf-8")
OVERVIEW = (REPO / "docs" / "how-it-works.md").read_text(encoding="utf-8")
PAGES = ["design.md", "CONTRIBUTING.md", "glossary.md", "SECURITY.md"]
NAMED = re.compile(r"`([\w./]+\.py):([\w.]+)`")


def hexdump(data: bytes) -> str:
    return "".join(f"{at:06x}  {data[at : at + 16].hex(' ')}\n" for at in range(0, len(data), 16))


def checkpoint_of(path: Path) -> str:
    """Return the body of the checkpoint as the page shows it."""
    data = (path / "checkpoint").read_bytes()
    return str(msgpack.unpackb(data[HEADER_BYTES : HEADER_BYTES + int.from_bytes(data[8:12], "little")]))


def test_the_message_of_the_page_leaves_the_bytes_that_the_page_shows(tmp_path: Path) -> None:
    path = tmp_path / "wheel"
    clock = Clock()
    drawn = iter([bytes(range(16, 32)), SALT])
    Wheel.create(path, clock=clock, env=SYSTEM.using(entropy=lambda size: next(drawn))).close()
    found = []
    with (
        Wheel(path, clock=clock, env=SYSTEM.using(entropy=named("PRDCR001"))) as wheel,
        Keeper(path, background=False, clock=clock, env=SYSTEM.using(entropy=named("KEEPER01"))) as keeper,
    ):
        wheel.enqueue(b"hello", delay=90, topic="mail")
        found.append(hexdump((path / "journal/PRDCR001-000001.log").read_bytes()))
        Deal(keeper._store, spread=True).run()
        found.append(hexdump((path / "laps/2000000/1800000090-1.slot").read_bytes()))
        assert checkpoint_of(path) in DESIGN
        assert f"| {(path / 'checkpoint').stat().st_size}: positions" in DESIGN
        clock.advance(90 * US_PER_S)
        batch = keeper.claim()
        assert (path / "begun").read_bytes()[32:] == batch.ids[0]
        keeper.ack(batch)
        found.append(hexdump((path / "journal/KEEPER01-000001.log").read_bytes()))
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
        assert not (path / "laps/2000000/1800000090-1.slot").exists()
        assert checkpoint_of(path) in DESIGN
    assert found == re.findall(r"```hexdump\n(.*?)```", DESIGN, re.S)
    assert_whole(path)


def test_the_picture_is_the_one_of_how_it_works() -> None:
    picture = re.search(r"```text\n producers .*?```", OVERVIEW, re.S)
    assert picture is not None
    assert picture[0] in DESIGN


def names_in(source: str) -> set[str]:
    """Return the functions, classes and constants of a module, a method with its class in front."""
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{n.name}" for n in node.body if isinstance(n, ast.FunctionDef)}
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_function_that_a_page_names_exists(page: str) -> None:
    pairs = NAMED.findall((REPO / "docs" / page).read_text(encoding="utf-8"))
    assert pairs
    for file, name in pairs:
        place = REPO / file if (REPO / file).is_file() else REPO / "filewheel" / file
        assert name in names_in(place.read_text(encoding="utf-8")), f"{file}:{name}"


@pytest.mark.parametrize("page", PAGES)
def test_each_file_that_a_page_names_exists(page: str) -> None:
    text = (REPO / "docs" / page).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:[\w-]+/)*[\w-]+\.(?:py|md|c))(?::[\w.]+)?`", text):
        assert any((root / name).is_file() for root in (REPO, REPO / "filewheel", REPO / "docs")), name


def test_each_folder_of_the_library_is_in_the_table_of_the_parts() -> None:
    parts = DESIGN.partition("## The parts")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(\w+)/`", parts))
    assert {p.parent.name for p in (REPO / "filewheel").glob("*/__init__.py")} <= listed


def rows_of_glossary() -> list[tuple[str, str]]:
    """Return each word of the glossary, and the cell that says where it is defined."""
    lines = (REPO / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    cells = [[c.strip() for c in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [(row[0], row[2]) for row in cells[2:]]


def test_the_glossary_is_in_order_and_each_word_has_one_meaning() -> None:
    words = [word for word, _ in rows_of_glossary()]
    assert words == sorted(set(words))


@pytest.mark.parametrize("page", PAGES)
def test_each_link_to_a_heading_has_its_heading(page: str) -> None:
    for name, slug in re.findall(r"\]\(([\w./-]+\.md)#([\w-]+)\)", (REPO / "docs" / page).read_text(encoding="utf-8")):
        headings = re.findall(r"^#+ (.*)$", (REPO / "docs" / name).read_text(encoding="utf-8"), re.M)
        assert slug in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}, f"{name}#{slug}"
