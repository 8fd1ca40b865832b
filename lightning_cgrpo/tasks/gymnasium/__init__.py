"""Gymnasium environments; needs the extra ``gymnasium``."""

from importlib.util import find_spec

from lightning_cgrpo.core import errors

if find_spec("gymnasium") is None:
    raise errors.MissingExtraError(
        f"Expected gymnasium to be installed, but it is not, try {errors.install_command('gymnasium')}."
    )

from lightning_cgrpo.tasks.gymnasium.environment import Gymnasium
from lightning_cgrpo.tasks.gymnasium.task import GymnasiumTask

__all__ = ["Gymnasium", "GymnasiumTask"]
