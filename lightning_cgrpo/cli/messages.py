"""Short messages for libraries' and users' errors."""

from __future__ import annotations

import errno
import importlib
import inspect
import re
import sysconfig
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

from lightning_cgrpo.core.errors import did_you_mean, first_line, install_command, names_a_remedy
from lightning_cgrpo.settings.signatures import NAMESPACES

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
LOST = re.compile(
    r"gloo.*(?:Connection (?:closed|reset) by peer|Broken pipe|timed out connecting)"
    r"|remote process exited|Did the remote server shutdown",
    re.S,
)
"""Complaints of gloo, NCCL and torch's store about a process that has ended."""
# jsonargparse's texts
KEY = 'Parser key "'
CLASS = "Expected a <class '"
LITERAL = "Expected a typing.Literal["
IMPORT_PATH = "Expected a dot import path string: "
GIVEN = "Given value: "
ABSTRACT = re.compile(r"Expected an instantiatable class, but (?P<path>\S*) ?is abstract")
GIVEN_CLASS = re.compile(r"Given value: (?:.*class_path['\"]?[=:] ?['\"])?(?P<path>\w+(?:\.\w+)*)")
"""The class in a value, which jsonargparse leaves out of a complaint that repeats it."""
REPEATED = ("Problem with given class_path", "Does not validate", "Expected a path but", "Subtypes:", "Errors:")
"""Starts of lines that say nothing of their own."""
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "Sequence": "a list",
    "dict": "a mapping by name",
}
"""Types in the words of a configuration."""
MODULES = {"optimizer": ["torch.optim"], "lr_scheduler": ["torch.optim.lr_scheduler"]}
"""Modules of the classes that stand at a key."""
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, each once: errors that threads raise again, as on a full disk, may form a circle."""
    passed: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in passed:
        passed.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def explain(error: BaseException) -> str:
    """The outermost user error, or jsonargparse's key and first real complaint, in one line.

    jsonargparse repeats the key's parts on lines of their own, and lists all types that a value could have had.
    """
    for cause in error_chain(error):
        if names_a_remedy(cause):
            return str(cause)
    lines = [line.strip(" -") for line in str(error).splitlines()]
    keys: list[str] = []
    for number, line in enumerate(lines):
        if KEY in line:
            keys.append(line.partition(KEY)[2].partition('"')[0])
        elif line and not line.startswith(REPEATED):
            key = ".".join(keys)
            rest = lines[number:]
            complaint = _class_message(line, key) or _abstract_class_message(rest) or _type_message(rest) or line
            return f"{key}: {complaint}" if keys else complaint
    return str(error)


def _class_message(line: str, key: str) -> str | None:
    """The complaint about a class that doesn't exist, or that can't stand at the key; None for other lines."""
    name = line.partition(IMPORT_PATH)[2]
    if not name:
        return None
    if name.rpartition(".")[2] in _class_names():
        return f"The class '{name}' can't stand here."
    return f"There is no class '{name}'.{did_you_mean(name, _class_names(key))}"


def _abstract_class_message(lines: list[str]) -> str | None:
    """The complaint about a class that lacks methods, or about settings without their class; None for other lines."""
    complaint = ABSTRACT.match(lines[0])
    if complaint is None:
        return None
    path = complaint["path"] or _given_class(lines)
    try:
        base = _class_at(path)
    except (ImportError, AttributeError, ValueError):
        return f"Expected a class without abstract methods, but got {path or 'another'}."
    if not base.__module__.startswith("lightning_cgrpo."):
        return f"Expected a whole class, but {missing_methods(base)}"
    # The package's own abstract class stands for settings without a class: list the classes that may stand here.
    names = set()
    for namespace in NAMESPACES:
        for value in vars(importlib.import_module(namespace)).values():
            if isinstance(value, type) and issubclass(value, base) and not inspect.isabstract(value):
                names.add(value.__name__)
    choice = ", ".join(sorted(names)) or f"a class of your own, of {path}"
    return f"Expected a class before its settings, but got none, try {choice}."


def _given_class(lines: list[str]) -> str:
    """The first class that the lines give as a value, or ""."""
    for line in lines:
        match = GIVEN_CLASS.match(line)
        if match is not None:
            return match["path"]
    return ""


def _class_at(path: str) -> type:
    """The class at an import path, or of a name in `NAMESPACES`."""
    module, _, name = path.rpartition(".")
    if not module:
        namespaces = [space for space in NAMESPACES if hasattr(importlib.import_module(space), name)]
        module = namespaces[0] if namespaces else ""
    kind: type = getattr(importlib.import_module(module), name)
    return kind


def missing_methods(kind: type) -> str:
    """The methods that a user's class lacks, the line where the class begins, and the class that declares them."""
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    declaring = set()
    for name in missing:
        first = next(base for base in reversed(kind.__mro__) if name in vars(base))
        declaring.add(first.__name__)
    bases = ", ".join(sorted(declaring))
    try:
        place = f" ({Path(inspect.getsourcefile(kind) or '').name}:{inspect.getsourcelines(kind)[1]})"
    except (OSError, TypeError):  # a class of a notebook, or made by code
        place = ""
    them = "it" if len(missing) == 1 else "them"
    return (
        f"{kind.__module__}.{kind.__name__}{place} is abstract: it lacks {', '.join(missing)}, which {bases} declares, "
        f"try to define {them}."
    )


def _type_message(lines: list[str]) -> str | None:
    """The complaint about a value of another type, in the words of a configuration; None for other lines."""
    wanted, _, value = lines[0].partition(". Got value: ")
    choices: list[str] = []
    for line in lines:
        if line.startswith(LITERAL):
            inside = line.removeprefix(LITERAL).partition("]")[0]
            choices += [choice.strip(" '\"") for choice in inside.split(",")]
        if not value and line.startswith(GIVEN):
            value = line.removeprefix(GIVEN).partition(". Got value: ")[0]

    # A type such as <class 'int'> in the words of a configuration, or the choices of a Literal.
    if wanted.startswith(CLASS) and wanted.endswith("'>"):
        name = wanted.removeprefix(CLASS).removesuffix("'>")
        kind = WORDS.get(name.rpartition(".")[2], name)
    elif not wanted.startswith(LITERAL):
        return None
    if choices:
        kind = f"one of {', '.join(choices)}"
    return f"Expected {kind}, but got {value or 'another value'}."


def disk_message(error: OSError) -> str | None:
    """Message for a full disk or a folder closed to the user; None for other errors."""
    if error.errno in FULL:
        return f"Expected room on the disk, but got: {error}; try to free space. Checkpoints written before are whole."
    if error.errno in CLOSED and error.filename is not None:
        return (
            f"Expected to write to '{error.filename}', but got: {error.strerror}; try another folder, such as "
            "--trainer.logger.save_dir=DIR."
        )
    return None


def wandb_message(error: Exception) -> str | None:
    """Message for W&B that is not installed, or whose server refuses the run; None for other errors."""
    if isinstance(error, ModuleNotFoundError) and "wandb" in str(error):
        return f"Expected W&B for WandbLogger, but it is not installed, try {install_command('wandb')}."
    if type(error).__module__.startswith("wandb"):
        return (
            f"Expected W&B to take the run, but got: {first_line(error)}; try `wandb login`, or WANDB_MODE=offline in "
            "the environment, which logs into a folder for `wandb sync`."
        )
    return None


def of_a_lost_process(error: BaseException) -> str | None:
    """Message for a collective in which another process of the run is missing; None for other errors."""
    from lightning_cgrpo.core.distributed import world  # not at the top, because it imports torch

    complaints = [str(cause) for cause in error_chain(error) if isinstance(cause, RuntimeError)]
    complaint = next((complaint for complaint in complaints if LOST.search(complaint)), None)
    if complaint is None:
        return None
    rank, size = world()
    other = f"process {1 - rank}" if size == 2 else "another process"
    address = re.search(r"\[([^\]/]+)\]:\d+", complaint)
    if address is not None:
        other += f" on {address[1]}"
    return (
        f"Expected all {size} processes of the run to go on, but {other} is lost, as "
        f"process {rank} found; its own output says why. Try the command again with --ckpt_path=auto."
    )


def unexpected_error(error: Exception) -> str:
    """At most three lines: the error and its place, its note, and the file of the traceback."""
    first_note = getattr(error, "__notes__", [])[:1]
    with tempfile.NamedTemporaryFile("w", prefix="lightning_cgrpo_", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    summary = f"{type(error).__name__}: {first_line(error)}{_raised_at(error)}"
    return "\n".join([summary, *first_note, f"The traceback is in {file.name}."])


def _raised_at(error: BaseException) -> str:
    """The innermost line of the traceback that is in no library, or ""."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not frame.filename.startswith((*LIBRARIES, "<")):
            return f" ({Path(frame.filename).name}:{frame.lineno}, in {frame.name})"
    return ""


def _class_names(key: str = "") -> list[str]:
    """Names of all classes; at the keys of callbacks and optimizers, only the names of their kind."""
    modules = MODULES.get(key.rpartition(".")[2], list(NAMESPACES))
    if key == "callbacks":
        modules = [name for name in NAMESPACES if name.endswith(".callbacks")]
    names = []
    for module in modules:
        names += importlib.import_module(module).__all__
    return names
