"""What one adds to a run: multipliers, and things that look inside."""

from lightning_cgrpo.callbacks.checkpoints import Checkpoints
from lightning_cgrpo.callbacks.completions import SampleAnswers
from lightning_cgrpo.callbacks.drives import DrivePictures
from lightning_cgrpo.callbacks.driving_scores import DrivingScores
from lightning_cgrpo.callbacks.fixed_weights import FixedWeights
from lightning_cgrpo.callbacks.lagrangian import LagrangianCallback
from lightning_cgrpo.callbacks.predictions import WritePredictions
from lightning_cgrpo.callbacks.progress import ObjectiveProgressBar
from lightning_cgrpo.callbacks.reference_sync import ReferenceSync
from lightning_cgrpo.callbacks.save_pretrained import SavePretrained
from lightning_cgrpo.callbacks.tables import EvaluationTable, InitialRates
from lightning_cgrpo.callbacks.tensorboard import EffectiveWeights, Pictures, TensorBoardLayout
from lightning_cgrpo.callbacks.weights import WeightSetter

__all__ = [
    "Checkpoints",
    "DrivePictures",
    "DrivingScores",
    "EffectiveWeights",
    "EvaluationTable",
    "FixedWeights",
    "InitialRates",
    "LagrangianCallback",
    "ObjectiveProgressBar",
    "Pictures",
    "ReferenceSync",
    "SampleAnswers",
    "SavePretrained",
    "TensorBoardLayout",
    "WeightSetter",
    "WritePredictions",
]
