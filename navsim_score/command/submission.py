"""The devkit's submission pickles, read and written without the devkit.

Reading makes nothing but plain values and arrays of numbers. Written pickles name the devkit's classes, and are read by
its own code, with any version of numpy.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from driving_scenes.cache import unfinished
from driving_scenes.errors import InputError, first_line
from navsim_score.command.trajectory_file import SAMPLINGS, Candidate, fault_of

STAGES = ("first_stage_predictions", "second_stage_predictions")
ONE_STAGE = "predictions"
"""Of NAVSIM v1."""
PROTOCOL = 4
"""Of pickle; the devkit runs on Python 3.9."""


class Record:
    """A dataclass of the devkit, as plain attributes."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class Trajectory(Record):
    """`poses` ``[P, 3]`` in the ego's frame, float32, and `trajectory_sampling`."""


class TrajectorySampling(Record):
    """`num_poses`, `time_horizon` and `interval_length` in seconds."""


RECORDS = {
    ("navsim.common.dataclasses", "Trajectory"): Trajectory,
    ("nuplan.planning.simulation.trajectory.trajectory_sampling", "TrajectorySampling"): TrajectorySampling,
}


class _Type(Record):
    """A type of numbers; numpy's own would let a pickle read bytes as Python objects."""

    def __init__(self, code: str, *_: Any) -> None:
        self.numbers = np.dtype(code)
        if self.numbers.kind not in "biuf":
            raise pickle.UnpicklingError(f"it holds an array of {self.numbers}, which are no numbers")

    def __setstate__(self, state: Any) -> None:
        self.numbers = self.numbers.newbyteorder(state[1])


class _Array(Record):
    """Numbers of an array, whose state comes after it."""

    numbers = np.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, number_type, columns_first, content = state
        order = "F" if columns_first else "C"
        self.numbers = _from_buffer(content, number_type, shape, order)


def _from_buffer(content: Any, number_type: _Type, shape: Any, order: Any) -> np.ndarray:
    return np.frombuffer(content, number_type.numbers).reshape(shape, order=order)


ARRAYS: dict[str, Callable[..., Any]] = {
    "_reconstruct": lambda *_: _Array(),
    "_frombuffer": _from_buffer,
    "scalar": lambda number_type, content: np.frombuffer(content, number_type.numbers)[0],
    "array": lambda values, code: np.array(values, _Type(code).numbers),
    "ndarray": _Array,
    "dtype": _Type,
}
"""Stand-ins for what pickles of arrays name, in whatever module of numpy."""


@dataclass(frozen=True)
class Authors:
    """What the leaderboard asks for.

    Args:
        team_name: of the leaderboard's row.
        authors: names, separated by commas.
        email: of the contact.
        institution: of the team.
        country: country or region of the team.
    """

    team_name: str
    authors: str
    email: str
    institution: str
    country: str


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in RECORDS:
            return RECORDS[module, name]
        if module.partition(".")[0] == "numpy" and name in ARRAYS:
            return ARRAYS[name]
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which is no array and no trajectory")


def read_submission(path: str | Path) -> dict[str, list[Candidate]]:
    """Candidates by token; several predictions of a token, from several seeds, are tagged by their numbers.

    Raises:
        InputError: the file is not a submission, or holds other objects than arrays, trajectories and plain values.
    """
    try:
        with Path(path).open("rb") as file:
            content = _Reader(file).load()
        # A stage has predictions of one or several seeds; a file without stages is the predictions themselves.
        stages = [content[key] or [] for key in (*STAGES, ONE_STAGE) if key in content]
        if not stages:
            stages = [[content]]
        candidates: dict[str, list[Candidate]] = {}
        for stage in stages:
            for seed, predictions in enumerate(stage):
                tag = str(seed) if len(stage) > 1 else None
                for token, trajectory in predictions.items():
                    candidates.setdefault(str(token), []).append(_candidate_of(trajectory, tag))
    except Exception as error:  # damaged pickles raise errors of all kinds
        raise InputError(
            f"Expected '{path}' to be a submission of the devkit, but got {type(error).__name__}: {first_line(error)}."
        ) from None
    return candidates


def _candidate_of(trajectory: Any, tag: str | None) -> Candidate:
    """A prediction, which is malformed unless its poses are finite ``[P, 3]``."""
    poses = getattr(trajectory, "poses", np.zeros(0))
    poses = np.array(getattr(poses, "numbers", poses), dtype=np.float64)
    sampling = getattr(trajectory, "trajectory_sampling", None)
    interval = float(getattr(sampling, "interval_length", 0) or 0)
    are_poses = poses.ndim == 2 and poses.shape[1] == 3 and len(poses) > 0 and np.isfinite(poses).all()
    if not are_poses or not interval > 0:
        return Candidate(tag, None, f"Expected finite poses [P, 3] with an interval, but got shape {poses.shape}.")
    tensor = torch.from_numpy(poses)
    return Candidate(tag, tensor, fault_of(tensor, interval), interval)


def write_submission(
    path: str | Path,
    authors: Authors,
    first: Mapping[str, Tensor],
    second: Mapping[str, Tensor],
    expected: Collection[str] | None = None,
) -> dict[str, str]:
    """Write a submission that the devkit's `run_pdm_score_from_submission` and its leaderboards read.

    Args:
        first: poses ``[8, 3]`` at 2 Hz or ``[40, 3]`` at 10 Hz by token of the first stage, in the ego's frame.
        second: of the second stage's synthetic scenes.
        expected: tokens of the split; by default not compared.

    Returns:
        Faults of the drives that teleport or turn by degrees, by token. They are written, because they are scored.

    Raises:
        InputError: tokens are missing or unknown, poses are not finite, or more than half of the drives have a fault,
            as poses in another frame do.
    """
    poses = {**first, **second}
    if expected is not None and set(expected) != poses.keys():
        missing = sorted(set(expected) - poses.keys())
        unknown = sorted(poses.keys() - set(expected))
        raise InputError(
            f"Expected a trajectory for each of the split's {len(expected):,} tokens, but got none for {len(missing)}, "
            f"as {missing[:3]}, and {len(unknown):,} others, as {unknown[:3]}, try data.test_prompts=null (all scenes)."
        )
    wanted = "Expected poses [8, 3] or [40, 3] in the ego's frame for token"
    faults: dict[str, str] = {}
    for token, plan in poses.items():
        if plan.dim() != 2 or plan.shape[1] != 3 or len(plan) not in SAMPLINGS or not plan.isfinite().all():
            raise InputError(f"{wanted} {token}: Expected finite poses, but got {list(plan.shape)}.")
        fault = fault_of(plan, SAMPLINGS[len(plan)])
        if fault is not None:
            faults[token] = fault
    if 2 * len(faults) > len(poses):
        token, fault = next(iter(faults.items()))
        raise InputError(f"{wanted} {token}: {fault}")
    about = asdict(authors)
    content = {key: about[key] for key in ("team_name", "authors", "email", "institution")}
    content["country / region"] = about["country"]
    for stage, plans in zip(STAGES, (first, second), strict=True):
        content[stage] = [{token: _trajectory_of(plan) for token, plan in plans.items()}]
    with unfinished(Path(path)) as beside, beside.open("wb") as file, _devkit_names():
        writer = pickle.Pickler(file, PROTOCOL)
        # Arrays of numpy 2 name modules that the devkit's numpy 1 doesn't have.
        writer.dispatch_table = {np.ndarray: lambda array: (np.array, (array.tolist(), array.dtype.str))}
        writer.dump(content)
    return faults


def _trajectory_of(plan: Tensor) -> Trajectory:
    interval = SAMPLINGS[len(plan)]
    sampling = TrajectorySampling()
    vars(sampling).update(num_poses=len(plan), time_horizon=len(plan) * interval, interval_length=interval)
    trajectory = Trajectory()
    vars(trajectory).update(poses=plan.detach().cpu().float().numpy(), trajectory_sampling=sampling)
    return trajectory


@contextmanager
def _devkit_names() -> Iterator[None]:
    """Let pickle find the records under the devkit's names, whether or not the devkit is installed."""
    # Modules of the devkit and their parents, which hold nothing but the records.
    stubs: dict[str, ModuleType] = {}
    for (module, name), record in RECORDS.items():
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            parent = ".".join(parts[:end])
            stubs.setdefault(parent, ModuleType(parent))
        setattr(stubs[module], name, record)
        record.__module__ = module
    before = {name: sys.modules.get(name) for name in stubs}
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name, held in before.items():
            sys.modules.pop(name)
            if held is not None:
                sys.modules[name] = held
        for record in RECORDS.values():
            record.__module__ = __name__
