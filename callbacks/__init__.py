"""Callbacks: multipliers, checkpoints, tables, pictures. More callbacks are in `examples/callbacks`."""

from lightning_cgrpo.callbacks.checkpoints import Checkpoints
from lightning_cgrpo.callbacks.defaults import default_callbacks
from lightning_cgrpo.callbacks.driving.pictures import DrivePictures
from lightning_cgrpo.callbacks.driving.scores import DrivingScores
from lightning_cgrpo.callbacks.driving.submission import WriteSubmission
from lightning_cgrpo.callbacks.evaluation_tables import EvaluationTable
from lightning_cgrpo.callbacks.fixed_weights import FixedWeights
from lightning_cgrpo.callbacks.initial_rates import InitialRates
from lightning_cgrpo.callbacks.lagrangian import LagrangianCallback
from lightning_cgrpo.callbacks.predictions import WritePredictions
from lightning_cgrpo.callbacks.progress import ObjectiveProgressBar
from lightning_cgrpo.callbacks.run_manifest import RunManifest
from lightning_cgrpo.callbacks.run_summary import RunSummary
from lightning_cgrpo.callbacks.sample_answers import SampleAnswers
from lightning_cgrpo.callbacks.save_pretrained import SavePretrained
from lightning_cgrpo.callbacks.tensorboard import Pictures, TensorBoardLayout
from lightning_cgrpo.callbacks.weight_setter import WeightSetter

__all__ = [
    "Checkpoints",
    "DrivePictures",
    "DrivingScores",
    "EvaluationTable",
    "FixedWeights",
    "InitialRates",
    "LagrangianCallback",
    "ObjectiveProgressBar",
    "Pictures",
    "RunManifest",
    "RunSummary",
    "SampleAnswers",
    "SavePretrained",
    "TensorBoardLayout",
    "WeightSetter",
    "WritePredictions",
    "WriteSubmission",
    "default_callbacks",
]
