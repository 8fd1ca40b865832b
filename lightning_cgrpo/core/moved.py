"""Modules of version 0.1 that have moved: their import says where to, in one line, for this version alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

MOVED = {
    "navsim": "navsim_score",
    "scenes": "driving_scenes",
    "critic": "lightning_cgrpo.grpo.critic",
    "reporting": "lightning_cgrpo.cli.report",
    "studies": "lightning_cgrpo.cli.study",
    "verdicts": "lightning_cgrpo.objective.verdicts",
}
CORE = (
    "child_process",
    "distributed",
    "errors",
    "json_client",
    "output",
    "prompts",
    "randomness",
    "rollout",
    "user_code",
)
MOVED |= {name: f"lightning_cgrpo.core.{name}" for name in CORE}


def new_path(path: str) -> str | None:
    """The path that replaces ``lightning_cgrpo.<old module>…``; None if the module has not moved."""
    package, _, rest = path.partition(".")
    old, dot, inner = rest.partition(".")
    if package != "lightning_cgrpo" or old not in MOVED:
        return None
    return f"{MOVED[old]}{dot}{inner}"


class MovedModules(MetaPathFinder):
    """Refuses the import of a moved module by naming its new path. Python asks it after all other finders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        new = new_path(name)
        if new is not None:
            raise ModuleNotFoundError(f"{name} has moved, try {new}.", name=name)
