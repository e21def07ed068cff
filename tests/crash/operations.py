"""The operations by which a mutant changes the statement that its mark stands on.

Most need no name of the source, so a rename or a move of the statement leaves them as they are. `gives`, `catches`,
`becomes`, `before` and `after` bring text along; tests/crash/test_mutants.py looks each name in it up in the module.
Invariant: an operation that does not fit its statement raises Misfit: each mutant changes something.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BLOCKS = ("body", "orelse", "handlers", "finalbody", "cases")
"""The fields of a compound statement that hold other statements; the rest is its header."""


class Misfit(AssertionError):
    """An operation does not fit the statement that it was to change."""


@dataclass(frozen=True)
class Operation:
    """What happens to the marked statement."""

    kind: str
    number: int = 0
    text: str = ""

    def apply(self, tree: ast.Module, node: ast.AST) -> None:
        """Change the node in its tree. Raises Misfit."""
        try:
            globals()[f"_{self.kind}"](self, node, *place_of(tree, node))
        except (IndexError, AttributeError, StopIteration, SyntaxError) as exc:
            raise Misfit(f"{self} does not fit {ast.unparse(node)!r}") from exc


DROP = Operation("drop")
"""The statement is left out, or one `except`."""
NEVER = Operation("never")
"""The condition of `if`, `while` or `x if y else z` does not hold; another value is False."""
ALWAYS = Operation("always")
"""The condition holds; another value is True."""
FLIP = Operation("flip")
"""The one True or False in the statement is the other."""
UNFILTERED = Operation("unfiltered")
"""The one `if` of a comprehension is left out."""
HOIST = Operation("hoist")
"""The first statement of a block comes before the block."""


def without(number: int) -> Operation:
    """Leave out one operand of the outermost `and`, `or`, `|`, `+`, `-`; the first is 1."""
    return Operation("without", number)


def unguarded(number: int = 0) -> Operation:
    """Leave out `with` (or one item of it; the first is 1), or `if`, or `try` with its handlers; the body stays."""
    return Operation("unguarded", number)


def later(number: int = 1) -> Operation:
    """Move the statement behind the next one, or further."""
    return Operation("later", number)


def earlier(number: int = 1) -> Operation:
    """Move the statement before the last one, or further."""
    return Operation("later", -number)


def gives(text: str) -> Operation:
    """Return, assign, or yield this instead."""
    return Operation("gives", text=text)


def catches(text: str) -> Operation:
    """Catch these errors instead."""
    return Operation("catches", text=text)


def before(text: str) -> Operation:
    """Put these statements before the marked one."""
    return Operation("before", text=text)


def after(text: str) -> Operation:
    """Put these statements after the marked one."""
    return Operation("after", text=text)


def becomes(text: str) -> Operation:
    """Put these statements in the place of the marked one; with a colon at the end, it is the header alone."""
    return Operation("becomes", text=text)


def place_of(tree: ast.AST, node: ast.AST) -> tuple[list[Any], int]:
    """Return the block of a tree that a statement stands in, and its index."""
    parents = [tree]
    for parent in parents:  # grows: blocks are in blocks, never in expressions
        for field in BLOCKS:
            block = getattr(parent, field, [])
            for index, one in enumerate(block):
                if one is node:
                    return block, index
            parents += block
    raise Misfit("the statement is not in the tree any more")


def header(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, outermost first, without the statements in its blocks."""
    todo = [node]
    while todo:
        one = todo.pop(0)
        yield one
        for field, value in ast.iter_fields(one):
            if not (one is node and field in BLOCKS and isinstance(value, list)):
                todo += [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, ast.AST)]


def put_in_place(root: Any, old: ast.AST, new: ast.AST) -> None:
    """Put one expression in the place of another."""
    for parent in ast.walk(root):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
                return
            if isinstance(value, list):
                for index, one in enumerate(value):
                    if one is old:
                        value[index] = new
                        return
    raise Misfit("the expression is not in the statement")


def only(found: list[Any]) -> Any:
    """Return the one element."""
    if len(found) != 1:
        raise Misfit(f"{len(found)} places fit")
    return found[0]


def statements(text: str) -> list[ast.stmt]:
    """Return the statements of a text."""
    return ast.parse(text).body


def _drop(op: Operation, node: Any, block: list[Any], index: int) -> None:
    block[index : index + 1] = [] if isinstance(node, ast.ExceptHandler) else [ast.Pass()]


def _set_condition(node: Any, value: bool) -> None:
    if isinstance(node, ast.If | ast.While | ast.Assert):
        node.test = ast.Constant(value)
    elif isinstance(getattr(node, "value", None), ast.IfExp):
        node.value = node.value.body if value else node.value.orelse
    elif isinstance(node, ast.Return | ast.Assign | ast.AnnAssign):
        node.value = ast.Constant(value)
    else:
        raise Misfit("no condition")


def _never(op: Operation, node: Any, block: list[Any], index: int) -> None:
    _set_condition(node, False)


def _always(op: Operation, node: Any, block: list[Any], index: int) -> None:
    _set_condition(node, True)


def _flip(op: Operation, node: Any, block: list[Any], index: int) -> None:
    constant = only([n for n in header(node) if isinstance(n, ast.Constant) and isinstance(n.value, bool)])
    constant.value = not constant.value


def _unfiltered(op: Operation, node: Any, block: list[Any], index: int) -> None:
    only([n for n in header(node) if isinstance(n, ast.comprehension) and n.ifs]).ifs.clear()


def _hoist(op: Operation, node: Any, block: list[Any], index: int) -> None:
    if len(node.body) < 2:
        raise Misfit("the block would be empty")
    block.insert(index, node.body.pop(0))


def _without(op: Operation, node: Any, block: list[Any], index: int) -> None:
    logic = next((n for n in header(node) if isinstance(n, ast.BoolOp)), None)
    if logic is not None:
        del logic.values[op.number - 1]
        if len(logic.values) == 1:
            put_in_place(node, logic, logic.values[0])
    else:
        sums = ast.BitOr | ast.Add | ast.Sub
        sum_ = next(n for n in header(node) if isinstance(n, ast.BinOp) and isinstance(n.op, sums))
        put_in_place(node, sum_, [sum_.right, sum_.left][op.number - 1])


def _unguarded(op: Operation, node: Any, block: list[Any], index: int) -> None:
    if op.number:
        del node.items[op.number - 1]
        if not node.items:
            raise Misfit("no item would be left")
    elif isinstance(node, ast.With | ast.AsyncWith | ast.If | ast.Try):
        block[index : index + 1] = [*node.body, *getattr(node, "finalbody", [])]
    else:
        raise Misfit("no guard")


def _later(op: Operation, node: Any, block: list[Any], index: int) -> None:
    if not 0 <= index + op.number < len(block):
        raise Misfit("the block ends before")
    block.insert(index + op.number, block.pop(index))


def _gives(op: Operation, node: Any, block: list[Any], index: int) -> None:
    if node.value is None:
        raise Misfit("no value")
    node.value = ast.parse(op.text, mode="eval").body


def _catches(op: Operation, node: Any, block: list[Any], index: int) -> None:
    if not isinstance(node, ast.ExceptHandler):
        raise Misfit("no except")
    node.type = ast.parse(op.text, mode="eval").body


def _before(op: Operation, node: Any, block: list[Any], index: int) -> None:
    block[index:index] = statements(op.text)


def _after(op: Operation, node: Any, block: list[Any], index: int) -> None:
    block[index + 1 : index + 1] = statements(op.text)


def _becomes(op: Operation, node: Any, block: list[Any], index: int) -> None:
    if not op.text.endswith(":"):
        block[index : index + 1] = statements(op.text)
        return
    new = only(statements(f"{op.text} pass"))
    for field in BLOCKS:
        if hasattr(new, field) != hasattr(node, field):
            raise Misfit("another kind of statement")
        if hasattr(node, field):
            setattr(new, field, getattr(node, field))
    block[index] = new
