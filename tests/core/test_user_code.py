"""Whatever user code raises is a counted fault, or an error that ends the run; a Ctrl-C is a Ctrl-C."""

import asyncio
import builtins
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from lightning import Callback

from lightning_cgrpo.callbacks import FixedWeights
from lightning_cgrpo.core.errors import UserError, first_line, printable
from lightning_cgrpo.core.stdlib_first import stdlib_first
from lightning_cgrpo.core.user_code import TimeLimitError, UserCode, by_signal, called, import_callable, run_in_loop
from lightning_cgrpo.datamodules import SeedDataModule
from lightning_cgrpo.samplers.conversation.tools import InvalidCallError, call_tool, own_reward
from lightning_cgrpo.tasks.functions.calls import call_functions
from tests.core.test_copies import Steps, World, module_of
from tests.quiet import quiet_trainer


class OwnError(BaseException):
    """As pytest, trio and others define them."""


def every_exception():
    kinds = [kind for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    return [*kinds, asyncio.CancelledError, OwnError]


def instance(kind):
    for arguments in (
        (),
        ("text",),
        ("text", [SystemExit()]),
        ("text", [ValueError()]),
        ("utf-8", b"x", 0, 1, "text"),
        ("utf-8", "x", 0, 1, "text"),
        ("x", 0, 1, "text"),
    ):
        try:
            return kind(*arguments)
        except TypeError:
            continue
    raise AssertionError(kind)


@pytest.fixture(autouse=True)
def handler(request):
    """By default one that marks what it raises, as `Termination` does, so other KeyboardInterrupts are the code's."""
    before = signal.signal(signal.SIGINT, getattr(request, "param", lambda number, frame: None))
    yield
    signal.signal(signal.SIGINT, before)


KINDS = every_exception()
BENDING = [kind for kind in KINDS if not issubclass(kind, Exception)]
BENDING += [StopIteration, StopAsyncIteration, ValueError, OSError]


def raising(kind):
    def function(**_):
        raise instance(kind)

    async def asynchronous(**_):
        await asyncio.sleep(0)
        raise instance(kind)

    return function, asynchronous


@pytest.mark.parametrize("time_limit", [None, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_functions_and_tools_raise_an_exception_or_none(kind, time_limit):
    for function in raising(kind):
        with pytest.raises(Exception) as error:
            call_functions({"mine": function}, {}, time_limit)
        assert not isinstance(error.value, (StopIteration, StopAsyncIteration)) and "'mine'" in str(
            [error.value, *error.value.__notes__]
        )
        with pytest.raises(Exception) as error:
            call_tool({"tool": function}, {"name": "tool", "arguments": {}}, time_limit)
        assert not isinstance(error.value, (StopIteration, StopAsyncIteration, InvalidCallError, TimeLimitError))

        class World:
            get_reward = staticmethod(function)

        with pytest.warns(UserWarning, match="get_reward raised"):
            assert own_reward(World()) != own_reward(World())  # NaN, a fault

    async def answers():
        return 5

    assert run_in_loop(answers(), "after").result(5) == 5, "the event loop still runs"


def test_a_task_that_a_coroutine_starts_leaves_the_event_loop_running():
    async def starts(**_):
        task = asyncio.ensure_future(ends())
        await asyncio.sleep(0.01)
        return task.done()

    async def ends():
        sys.exit(0)

    assert called(starts, {}, "starts", 5) is True and called(starts, {}, "starts", 5) is True


class BrokenWorld(World):
    max_steps = 1
    raised = None

    def reset(self, prompts, group_size):
        walk = super().reset(prompts, group_size)
        if self.raised is not None:
            walk.step = lambda *_: raising(self.raised)[0]()
        return walk


class BrokenTask(Steps):
    """Raises when answers are scored, or afterwards."""

    raised = logging = None

    def score(self, prompts, rollouts):
        if self.raised is not None:
            raise instance(self.raised)
        return super().score(prompts, rollouts)

    def logged(self):
        if self.logging is not None:
            raise instance(self.logging)


class Seeds(SeedDataModule):
    raised = None

    def source(self, split):
        source = super().source(split)
        if self.raised is not None:

            def groups(index):
                raise instance(self.raised)

            source.groups = groups
        return source


STAGES = {"fit": ("on_train_", "on_validation_"), **{of: f"on_{of}_" for of in ("test", "predict")}}
STAGES["validate"] = "on_validation_"
"""Starts of the names of the hooks that a command calls."""


class Raising(Callback):
    """Raises StopIteration in one hook, as `next` of an empty iterator does."""

    def __init__(self, hook):
        self.called = False
        setattr(self, hook, self.end)

    def end(self, *_):
        self.called = True
        next(iter(()))


def run(command, broken, kind=None):
    limits = {"max_steps": 2, "max_epochs": -1, "limit_val_batches": None, "val_check_interval": 1}
    trainer = quiet_trainer(FixedWeights({"wrong": 1.0}), **limits)
    world, task, data = BrokenWorld(False), BrokenTask(), Seeds(2, 32, 8, 8, 4, seed=0)
    if broken == "logged":
        task.logging = kind
    elif isinstance(broken, Callback):
        trainer.callbacks.insert(0, broken)
    else:
        {"environment": world, "task": task, "data": data}[broken].raised = kind
    getattr(trainer, command)(module_of(world, task), data)


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        *itertools.product(["fit", "validate", "test", "predict"], ["environment", "task", "data"]),
        *itertools.product(["fit", "validate"], ["logged"]),
    ],
)
def test_no_command_ends_or_is_shortened_without_an_error(command, broken):
    for kind in BENDING:
        with warnings.catch_warnings(), pytest.raises(Exception) as error:
            warnings.simplefilter("ignore")
            run(command, broken, kind)
        bends = not issubclass(kind, Exception) or kind in (StopIteration, StopAsyncIteration)
        assert isinstance(error.value, UserError if bends else kind), kind
        assert not bends or kind.__name__ in str(error.value)


@pytest.mark.parametrize("command", STAGES)
def test_no_hook_of_a_callback_ends_a_loop_without_an_error(command):
    hooks = [name for name in vars(Callback) if name.startswith(STAGES[command])]
    for hook in hooks:
        callback = Raising(hook)
        with warnings.catch_warnings(), pytest.raises((UserError, StopIteration)):
            warnings.simplefilter("ignore")
            run(command, callback)
        assert callback.called


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


@pytest.mark.parametrize("time_limit", [None, 10.0])
@pytest.mark.parametrize("handler", [signal.default_int_handler], indirect=True)
def test_a_real_interrupt_passes(time_limit, handler):
    with pytest.raises(KeyboardInterrupt), UserCode("a task"), UserCode("a sampler"):
        called(interrupt, {}, "mine", time_limit)


def test_an_interrupt_of_the_package_s_handler_passes():
    with pytest.raises(UserError, match="KeyboardInterrupt"), UserCode("mine"):
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), UserCode("mine"):
        raise by_signal(KeyboardInterrupt())


def test_other_threads_have_no_signals():
    outcomes = []

    def elsewhere():
        try:
            with UserCode("mine"):
                raise KeyboardInterrupt
        except UserError as error:
            outcomes.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "KeyboardInterrupt" in str(outcomes[0])


class SilentError(Exception):
    def __str__(self):
        raise SystemExit("no text")


def test_texts_of_all_values_can_be_shown():
    assert first_line(SilentError()).startswith("<SilentError")
    assert printable("\x1b]0;title\x07\x9b\ud83d") == r"\x1b]0;title\x07\x9b" + "\ufffd"
    assert printable("plain text \U0001f600") == "plain text \U0001f600"


def test_only_the_exit_at_a_closed_pipe_passes():
    """As Rich ends ``fit | head``; another SystemExit is an error with a name."""
    with pytest.raises(SystemExit), UserCode("the pipe"):
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904
    for other in (None, ValueError()):
        with pytest.raises(UserError, match="Expected the pipe to return"), UserCode("the pipe"):
            error = SystemExit(1)
            error.__context__ = other
            raise error
    with pytest.raises(UserError, match="Expected the pipe to return"), UserCode("the pipe"):
        interrupt = GeneratorExit()
        interrupt.__context__ = BrokenPipeError()
        raise interrupt


def test_a_file_named_like_a_module_of_pythons_is_told(folder):
    (folder / "random.py").write_text("def reward(completions): return [0.0]")
    with pytest.raises(UserError, match=r"Python's own module random comes before random\.py, try another name"):
        import_callable("random.reward", "signal 'brief'")


def test_pythons_own_modules_come_before_those_of_a_folder(monkeypatch):
    monkeypatch.setattr(sys, "path", ["/here", "/lib/python3.11", "/here", "/lib/site-packages", "/later"])
    stdlib_first("/here")
    assert sys.path == ["/lib/python3.11", "/here", "/lib/site-packages", "/later"]


@pytest.mark.slow
def test_a_file_random_py_takes_no_modules_place(tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('mine')")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "lightning_cgrpo", "configs"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 and "gridworld" in ended.stdout, ended.stderr
