"""The tests lie where a reader looks for them: each file is named after the module that it tests."""

from __future__ import annotations

from pathlib import Path

from tests.support import REPO

TESTS = REPO / "tests"
OWN = {"test_api.py", "test_design_doc.py", "test_layers.py"}
"""Tests of the tree as a whole."""
PROGRAMS = ("bench", "crash", "days", "journey", "model", "mutation", "project")
SITUATIONS = ("kafka",)
"""Folders that test one machine of many parts: their files are named after what happens to it."""


def modules(folder: Path) -> set[str]:
    """The names of the modules and folders of a part of the library."""
    return {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}


def home(path: Path) -> Path:
    """The part of the library, or of the command line, that a file of tests is about."""
    parts = path.relative_to(TESTS).parent.parts
    return REPO / "cli" if parts[:1] == ("cli",) else REPO.joinpath("filewheel", *parts)


def mirrored() -> list[Path]:
    found = sorted(TESTS.rglob("test_*.py"))
    return [p for p in found if p.name not in OWN and p.relative_to(TESTS).parts[0] not in (*PROGRAMS, *SITUATIONS)]


def test_a_file_of_tests_is_named_after_a_module_of_its_folder() -> None:
    for path in mirrored():
        name, folder = path.stem.removeprefix("test_"), home(path)
        known = modules(folder)
        if folder.name in ("cli", "live"):  # a verb is found by its name, whichever folder it is in
            known = {path.stem for path in folder.rglob("*") if path.suffix == ".py" or path.is_dir()}
        assert any(name == module or name.startswith(f"{module}_") for module in known), (path, sorted(known))


def test_each_folder_of_tests_and_each_answer_of_the_readme_is_there() -> None:
    text = (TESTS / "README.md").read_text()
    for folder in {path.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py") if path.parent != TESTS}:
        said = f"`{folder}/" in text or f"tests.{folder}" in text
        assert said or (REPO / "filewheel" / folder).is_dir(), folder
    for word in text.split("`")[1::2]:
        if word.endswith(".py") and "<" not in word and not word.startswith("filewheel/"):
            assert list(TESTS.glob(word.removeprefix("tests/"))), word
