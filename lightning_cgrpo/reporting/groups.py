"""Group methods by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_cgrpo.cli.configuration import get, short_class
from lightning_cgrpo.reporting.labels import TASK, numbered
from lightning_cgrpo.reporting.runs import MethodRuns

UNKNOWN = "unknown task"


@dataclass
class _Group:
    task: str
    constraints: set[str]
    members: list[int]

    def takes(self, task: str, constraints: set[str]) -> bool:
        shared = bool(self.constraints & constraints)
        if not task:
            return shared or not self.task
        return task == self.task and (shared or not constraints)


def grouped(methods: Sequence[MethodRuns]) -> list[tuple[str, list[MethodRuns]]]:
    """Named groups of methods by task.

    Methods of a task class without a common constraint are separated. A method without a configuration joins a group
    that shares a constraint.
    """
    groups: list[_Group] = []
    about = [(short_class(get(method.method, TASK)), set(method.constraints)) for method in methods]
    # Methods that fit many groups come last.
    for n in sorted(range(len(methods)), key=lambda n: (not about[n][0], not about[n][1])):
        task, constraints = about[n]
        fitting = [group for group in groups if group.takes(task, constraints)]
        if not (task and constraints):
            fitting = fitting[:1]
        group = _Group(fitting[0].task if fitting else task, constraints, [n])
        for part in fitting:
            groups.remove(part)
            group.constraints |= part.constraints
            group.members += part.members
        groups.append(group)
    groups.sort(key=lambda group: min(group.members))
    found = [[methods[n] for n in sorted(group.members)] for group in groups]
    return list(zip(_names(groups, found), found, strict=True))


def _names(groups: Sequence[_Group], found: Sequence[Sequence[MethodRuns]]) -> list[str]:
    tasks = [group.task.removesuffix("Task") or group.task or UNKNOWN for group in groups]
    counts = Counter(tasks)
    declared = [
        ", ".join(dict.fromkeys(name for method in methods for name in method.constraints)) for methods in found
    ]
    return numbered(
        [f"{task} ({names})" if counts[task] > 1 else task for task, names in zip(tasks, declared, strict=True)]
    )
