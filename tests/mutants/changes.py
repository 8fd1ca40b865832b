"""The changes: what a slip of the pen does to an expression or a statement inside a function."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

PAIRS = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)
COMPARISONS = dict(PAIRS) | {second: first for first, second in PAIRS}
OPERATIONS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult}
OPERATIONS |= {ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd}
NAMES = {"min": "max", "any": "all", "amin": "amax", "argmin": "argmax", "floor": "ceil", "minimum": "maximum"}
NAMES |= {other: name for name, other in NAMES.items()} | {"sum": "mean", "mean": "sum"}
# Texts for people, and types, are no behavior.
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.ClassDef, ast.arguments)
# Assertions, and what a GPU alone shows.
UNSEEN = "strict", "device", "non_blocking"
TOLD = ("warn", "rank_zero_info", "rank_zero_warn", "print", "info", "warning", "debug", "cast")


@dataclass(frozen=True)
class Mutant:
    """One change of a function's code.

    Args:
        file: the path in the repository.
        function: name with its classes, and `first_line`, where Python says that it begins.
        lines: of the changed statement; a test that runs none of them can't see the change.
        change: source before and after.
        number: of equal changes in a function, the first is 0.
        source: of the function, without the change.
    """

    file: str
    function: str
    first_line: int
    lines: range
    change: str
    number: int
    source: str

    @property
    def name(self) -> str:
        return f"{self.file} {self.function}: {self.change}" + f" ({self.number + 1})" * (self.number > 0)

    @property
    def text(self) -> str:
        return f"{self.name}  (line {self.lines.start})"


def mutants_of(root: Path, file: str) -> Iterator[tuple[Mutant, ast.Module]]:
    """All mutants of a file, each with the changed source, which is changed back before the next."""
    tree = ast.parse((root / file).read_text())
    for name, function in _functions(tree, ""):
        first_line = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        seen: dict[str, int] = {}
        source = ast.unparse(function)
        for parent, field, index, lines in _places(function, range(0)):
            old = getattr(parent, field) if index is None else getattr(parent, field)[index]
            for new in _changed(old):
                change = f"{_text(old)}  ->  {_text(new)}"
                number = seen[change] = seen.get(change, -1) + 1
                _put(parent, field, index, ast.fix_missing_locations(ast.copy_location(new, old)))
                yield Mutant(file, name, first_line, lines, change, number, source), tree
                _put(parent, field, index, old)


def code_of(mutant: Mutant, root: Path) -> CodeType:
    """The changed function, compiled."""
    tree = next(tree for other, tree in mutants_of(root, mutant.file) if other == mutant)
    waiting = [compile(tree, str(root / mutant.file), "exec", dont_inherit=True)]
    while waiting:
        code = waiting.pop()
        if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.first_line):
            return code
        waiting += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    raise AssertionError(mutant.name)


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in getattr(node, "body", []):
        if isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")


def _places(parent: ast.AST, lines: range) -> Iterator[tuple[ast.AST, str, int | None, range]]:
    """Every place of a node in the body of `parent`, with the lines of its statement."""
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "decorator_list") or getattr(parent, "arg", None) in UNSEEN:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED) or _for_people(child):
                continue
            inside = _lines(child) if isinstance(child, ast.stmt) else lines
            yield parent, field, index, inside
            yield from _places(child, inside)


def _lines(statement: ast.stmt) -> range:
    """The lines of a statement, without those of its body."""
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def _for_people(node: ast.AST) -> bool:
    """Docstrings and messages."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    call = node.value if isinstance(node, ast.Expr) else node
    return isinstance(call, ast.Call) and _name(call).lstrip("_") in TOLD


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node with each of its changes."""
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
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.IfExp():
            yield ast.IfExp(new.test, new.orelse, new.body)
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case ast.Call():
            yield from _changed_calls(new)
    if isinstance(node, ast.If | ast.While):
        negated = copy.deepcopy(node)
        negated.test = ast.UnaryOp(ast.Not(), negated.test)
        yield negated
    if isinstance(node, ast.AugAssign):
        yield ast.Pass()
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        # A method that calls super has a free variable, which the new code needs too.
        yield ast.Expr(ast.Name("__class__", ast.Load())) if "super()" in ast.unparse(node) else ast.Pass()


def _changed_calls(call: ast.Call) -> Iterator[ast.Call]:
    """Another function of the same arguments, and the call without each of its keywords."""
    if _name(call) in NAMES:
        other = copy.deepcopy(call)
        setattr(other.func, "attr" if isinstance(other.func, ast.Attribute) else "id", NAMES[_name(call)])
        yield other
    for index, keyword in enumerate(call.keywords):
        if keyword.arg is not None and keyword.arg not in UNSEEN:
            fewer = copy.deepcopy(call)
            del fewer.keywords[index]
            yield fewer


def _is_text(node: ast.BinOp | ast.AugAssign) -> bool:
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in sides)


def _text(node: ast.AST) -> str:
    """Source in a line; of a condition, its test."""
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    return " ".join(ast.unparse(node).split())


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node
