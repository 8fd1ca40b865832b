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
CLASS, LITERAL = "Expected a <class '", "Expected a typing.Literal["
IMPORT_PATH, GIVEN = "Expected a dot import path string: ", "Given value: "
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


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, each once: those that threads raise again, as on a full disk, may form a circle."""
    passed: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in passed:
        passed.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def explain(error: BaseException) -> str:
    """The outermost user error, or jsonargparse's key and first real complaint, in one line.

    jsonargparse repeats the key's parts on lines of their own, and lists all types that a value could have had.
    """
    for link in chain(error):
        if names_a_remedy(link):
            return str(link)
    lines = [line.strip(" -") for line in str(error).splitlines()]
    keys: list[str] = []
    for number, line in enumerate(lines):
        if KEY in line:
            keys.append(line.partition(KEY)[2].partition('"')[0])
        elif line and not line.startswith(REPEATED):
            key = ".".join(keys)
            complaint = (
                _of_class(line, key) or _of_an_abstract_class(lines[number:]) or _of_type(lines[number:]) or line
            )
            return f"{key}: {complaint}" if keys else complaint
    return str(error)


def _of_class(line: str, key: str) -> str | None:
    """The complaint about a class that doesn't exist, or that can't stand at the key; None for other lines."""
    name = line.partition(IMPORT_PATH)[2]
    if not name:
        return None
    if name.rpartition(".")[2] in _class_names():
        return f"The class '{name}' can't stand here."
    return f"There is no class '{name}'.{did_you_mean(name, _class_names(key))}"


def _of_an_abstract_class(lines: list[str]) -> str | None:
    """The complaint about a class that lacks methods, or about settings without their class; None for other lines."""
    complaint = ABSTRACT.match(lines[0])
    if complaint is None:
        return None
    given = next(filter(None, map(GIVEN_CLASS.match, lines)), None)
    path = complaint["path"] or (given["path"] if given else "")
    try:
        base = _class_at(path)
    except (ImportError, AttributeError, ValueError):
        return f"Expected a class without abstract methods, but got {path or 'another'}."
    if not base.__module__.startswith("lightning_cgrpo."):
        return f"Expected a whole class, but {lacking(base)}"
    names = set()
    for namespace in NAMESPACES:
        for value in vars(importlib.import_module(namespace)).values():
            if isinstance(value, type) and issubclass(value, base) and not inspect.isabstract(value):
                names.add(value.__name__)
    choice = ", ".join(sorted(names)) or f"a class of your own, of {path}"
    return f"Expected a class before its settings, but got none, try {choice}."


def _class_at(path: str) -> type:
    """The class at an import path, or of a name in `NAMESPACES`."""
    module, _, name = path.rpartition(".")
    modules = [module] if module else [space for space in NAMESPACES if hasattr(importlib.import_module(space), name)]
    found: type = getattr(importlib.import_module(modules[0] if modules else ""), name)
    return found


def lacking(kind: type) -> str:
    """What a class of the user lacks, where it begins, and which class declares it."""
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    declaring = {name: next(base for base in reversed(kind.__mro__) if name in vars(base)) for name in missing}
    bases = ", ".join(sorted({base.__name__ for base in declaring.values()}))
    try:
        place = f" ({Path(inspect.getsourcefile(kind) or '').name}:{inspect.getsourcelines(kind)[1]})"
    except (OSError, TypeError):  # of a notebook, or made by code
        place = ""
    return (
        f"{kind.__module__}.{kind.__name__}{place} is abstract: it lacks {', '.join(missing)}, which {bases} declares, "
        f"try to define {'it' if len(missing) == 1 else 'them'}."
    )


def _of_type(lines: list[str]) -> str | None:
    """The complaint about a value of another type, in the words of a configuration; None for other lines."""
    wanted, _, value = lines[0].partition(". Got value: ")
    choices: list[str] = []
    for line in lines:
        if line.startswith(LITERAL):
            inside = line.removeprefix(LITERAL).partition("]")[0]
            choices += [choice.strip(" '\"") for choice in inside.split(",")]
        if not value and line.startswith(GIVEN):
            value = line.removeprefix(GIVEN).partition(". Got value: ")[0]
    if wanted.startswith(CLASS) and wanted.endswith("'>"):
        name = wanted.removeprefix(CLASS).removesuffix("'>")
        kind = WORDS.get(name.rpartition(".")[2], name)
    elif not wanted.startswith(LITERAL):
        return None
    if choices:
        kind = f"one of {', '.join(choices)}"
    return f"Expected {kind}, but got {value or 'another value'}."


def of_the_disk(error: OSError) -> str | None:
    """Message for a full disk or a folder closed to the user; None for other errors."""
    if error.errno in FULL:
        return f"Expected room on the disk, but got: {error}; try to free space. Checkpoints written before are whole."
    if error.errno in CLOSED and error.filename is not None:
        return (
            f"Expected to write to '{error.filename}', but got: {error.strerror}; try another folder, such as "
            "--trainer.logger.save_dir=DIR."
        )
    return None


def of_wandb(error: Exception) -> str | None:
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

    link = next((link for link in chain(error) if isinstance(link, RuntimeError) and LOST.search(str(link))), None)
    if link is None:
        return None
    (rank, size), at = world(), re.search(r"\[([^\]/]+)\]:\d+", str(link))
    other = f"process {1 - rank}" if size == 2 else "another process"
    return (
        f"Expected all {size} processes of the run to go on, but {other}{f' on {at[1]}' if at else ''} is lost, as "
        f"process {rank} found; its own output says why. Try the command again with --ckpt_path=auto."
    )


def unexpected(error: Exception) -> str:
    """At most three lines: the error and its place, its note, and the file of the traceback."""
    lines = [f"{type(error).__name__}: {first_line(error)}{_place(error)}", *getattr(error, "__notes__", [])[:1]]
    with tempfile.NamedTemporaryFile("w", prefix="lightning_cgrpo_", suffix=".txt", delete=False) as file:
        file.write("".join(traceback.format_exception(error)))
    return "\n".join([*lines, f"The traceback is in {file.name}."])


def _place(error: BaseException) -> str:
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((*LIBRARIES, "<"))
    ]
    if not frames:
        return ""
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name})"


def _class_names(key: str = "") -> list[str]:
    """Names of classes, of callbacks or optimizers alone for their keys."""
    modules = [name for name in NAMESPACES if key != "callbacks" or name.endswith(".callbacks")]
    modules = MODULES.get(key.rpartition(".")[2], modules)
    return [name for module in modules for name in importlib.import_module(module).__all__]
