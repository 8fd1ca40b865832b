"""The changes of a file: slips of the pen, and the changes that an expert would fear.

An expert would fear a guard that is gone (``if ...: raise``), an early return that is gone, a mask that is left out.
Outside of functions, only numbers and switches change: constants, fields of classes, and defaults of arguments.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAIRS = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)
COMPARISONS = dict(PAIRS) | {second: first for first, second in PAIRS}
OPERATIONS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
OPERATIONS |= {ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
NAMES = {"min": "max", "any": "all", "amin": "amax", "argmin": "argmax", "floor": "ceil", "minimum": "maximum"}
NAMES |= {other: name for name, other in NAMES.items()} | {"sum": "mean", "mean": "sum"}
# Texts for people, assertions and types are no behavior.
SKIPPED_NODES = (ast.Raise, ast.Assert, ast.JoinedStr)
SKIPPED_FIELDS = ("annotation", "returns", "decorator_list")
TOLD = ("warn", "rank_zero_info", "rank_zero_warn", "print", "info", "warning", "debug", "cast")
# Keywords that assert, that only a GPU or another encoding of files shows, or that are texts for people.
UNSEEN = "strict", "device", "non_blocking", "encoding", "prog", "description", "help", "metavar"


@dataclass(frozen=True)
class Mutant:
    """One change of a file.

    Args:
        file: path in the repository.
        name: file, function or constant, and the source before and after, which is unique.
        line: of the change.
        start: first byte of the source before, and `end`, the byte after the last.
        new: source after.
    """

    file: str
    name: str
    line: int
    start: int
    end: int
    new: str

    def source(self, root: Path) -> bytes:
        """The changed file; comments and all other lines stay, so lines keep their numbers up to the change."""
        old = (root / self.file).read_bytes()
        return old[: self.start] + self.new.encode() + old[self.end :]


@dataclass(frozen=True)
class _Place:
    """A node that may change.

    Args:
        owner: name of the function with its classes, with the argument for a default; else of the constant.
        in_function: the node is in the body of a function.
        is_last: the node is the last statement of a function.
    """

    node: ast.AST
    owner: str
    in_function: bool
    is_last: bool = False


def mutants_of(root: Path, file: str) -> list[Mutant]:
    """All mutants of a file, in the order of the source."""
    source = (root / file).read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    seen: Counter[str] = Counter()
    for place in _outside(ast.parse(source).body, ""):
        for old, new in _changes(place):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[old.end_lineno - 1] + old.end_col_offset
            if source[start:].startswith(b"elif"):
                continue  # a condition in the middle can't be left out
            name = f"{file} {place.owner}: {_text(old)}  ->  {_text(new)}"
            seen[name] += 1
            number = f" ({seen[name]})" * (seen[name] > 1)
            text = _text(new) if isinstance(new, ast.stmt) else f"({_text(new)})"
            found.append(Mutant(file, name + number, old.lineno, start, end, text))
    return found


def _outside(statements: list[ast.stmt], prefix: str) -> Iterator[_Place]:
    """Places in a module or a class."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef):
            yield from _outside(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + statement.name
            for argument, default in _defaults(statement.args):
                yield from _inside(default, f"{name}({argument})", in_function=False)
            for inner in statement.body:
                yield from _inside(inner, name, in_function=True, is_last=inner is statement.body[-1])
        elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            yield from _inside(statement.value, prefix + ast.unparse(target), in_function=False)


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    given = positional[len(positional) - len(arguments.defaults) :]
    defaults = [*zip(given, arguments.defaults, strict=True)]
    defaults += [pair for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if pair[1] is not None]
    for argument, default in defaults:
        yield argument.arg, default


def _inside(node: ast.AST, owner: str, in_function: bool, is_last: bool = False) -> Iterator[_Place]:
    """A node and those in it."""
    if isinstance(node, SKIPPED_NODES) or _is_for_people(node):
        return
    if isinstance(node, ast.keyword) and node.arg in UNSEEN:
        return
    yield _Place(node, owner, in_function, is_last)
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _inside(child, owner, in_function)


def _is_for_people(node: ast.AST) -> bool:
    """Docstrings and messages."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    call = node.value if isinstance(node, ast.Expr) else node
    return isinstance(call, ast.Call) and _called(call).lstrip("_") in TOLD


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _changes(place: _Place) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Pairs of a node and another in its place."""
    node = place.node
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield node, ast.Constant(_other_number(node.value))
    if not place.in_function:
        return
    for new in (*_other_expressions(node), *_without_masks(node)):
        yield node, new
    if isinstance(node, ast.If | ast.While) and not _is_negated_elsewhere(node.test):
        yield node.test, ast.UnaryOp(ast.Not(), node.test)
    for new in _other_statements(node, place.is_last):
        yield node, new


def _other_number(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):
        return not value
    return value + (1 if isinstance(value, int) else max(1.0, abs(value)))


def _other_expressions(node: ast.AST) -> Iterator[ast.AST]:
    """Another comparison, operation or function; the other branch; a call without each of its keywords."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[operator]):
            new.ops = [COMPARISONS[type(operator)]()]
            yield new
        case ast.BinOp() | ast.AugAssign() if type(new.op) in OPERATIONS and not _is_text(new):
            new.op = OPERATIONS[type(new.op)]()
            yield new
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
            yield new
        case ast.UnaryOp():
            yield new.operand
        case ast.IfExp():
            yield ast.IfExp(new.test, new.orelse, new.body)
        case ast.Call():
            for index, keyword in enumerate(new.keywords):
                if keyword.arg is not None and keyword.arg not in UNSEEN:
                    fewer = copy.deepcopy(new)
                    del fewer.keywords[index]
                    yield fewer
            if _called(new) in NAMES:
                setattr(new.func, "attr" if isinstance(new.func, ast.Attribute) else "id", NAMES[_called(new)])
                yield new


def _without_masks(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(args=[_, chosen, _]) if _called(node) == "where":
            yield chosen
        case ast.Call(func=ast.Attribute(value=values)) if _called(node).startswith("masked_fill"):
            yield values
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            yield left
            yield right


def _is_negated_elsewhere(test: ast.AST) -> bool:
    """``a != b`` is ``not a == b``, and `a` is ``not not a``."""
    opposed = ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
    return isinstance(test, ast.UnaryOp) or (isinstance(test, ast.Compare) and isinstance(test.ops[0], opposed))


def _other_statements(node: ast.AST, is_last: bool) -> Iterator[ast.AST]:
    """Without a call, a sum, a guard or an early return; the other way out of a loop."""
    match node:
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.If(orelse=[], body=[*_, ast.Raise() | ast.Continue()]):
            yield ast.Pass()
        case ast.Return() if not is_last:
            yield ast.Pass()


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in sides)


def _text(node: ast.AST) -> str:
    """Source in a line; of a condition, its test."""
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}"
    return " ".join(ast.unparse(node).split())
