"""Types of the names that `__init__.py` imports at first use; `tests/test_packaging.py` compares both lists."""

from lightning_cgrpo.cli.loading import load as load
from lightning_cgrpo.datamodules.base import GroupDataModule as GroupDataModule
from lightning_cgrpo.grpo.advantages import GDPO as GDPO
from lightning_cgrpo.grpo.advantages import AdvantageEstimator as AdvantageEstimator
from lightning_cgrpo.grpo.advantages import LeaveOneOut as LeaveOneOut
from lightning_cgrpo.grpo.advantages import ScalarizedAdvantages as ScalarizedAdvantages
from lightning_cgrpo.grpo.advantages import ScalarizedRewards as ScalarizedRewards
from lightning_cgrpo.grpo.minibatches import Optimization as Optimization
from lightning_cgrpo.grpo.surrogates import CISPO as CISPO
from lightning_cgrpo.grpo.surrogates import SAPO as SAPO
from lightning_cgrpo.modules.constrained_grpo import ConstrainedGRPO as ConstrainedGRPO
from lightning_cgrpo.modules.supervised import SupervisedFineTuning as SupervisedFineTuning
from lightning_cgrpo.multipliers.controller import Controller as Controller
from lightning_cgrpo.navsim.traffic.log_replay import LogReplay as LogReplay
from lightning_cgrpo.navsim.traffic.reactive import Reactive as Reactive
from lightning_cgrpo.objective.constraint import Constraint as Constraint
from lightning_cgrpo.objective.constraint import ObjectiveError as ObjectiveError
from lightning_cgrpo.objective.objective import Objective as Objective
from lightning_cgrpo.policies.categorical_mlp import CategoricalMLP as CategoricalMLP
from lightning_cgrpo.policies.causal_lm import CausalLMPolicy as CausalLMPolicy
from lightning_cgrpo.policies.policy import Policy as Policy
from lightning_cgrpo.policies.sharding import FSDP2Strategy as FSDP2Strategy
from lightning_cgrpo.policies.vision_language import VisionLanguagePolicy as VisionLanguagePolicy
from lightning_cgrpo.rollout import PromptGroups as PromptGroups
from lightning_cgrpo.rollout import Rollouts as Rollouts
from lightning_cgrpo.rollout import Signal as Signal
from lightning_cgrpo.samplers.environment import Environment as Environment
from lightning_cgrpo.samplers.environment import EnvironmentSampler as EnvironmentSampler
from lightning_cgrpo.samplers.generation import GenerationSampler as GenerationSampler
from lightning_cgrpo.samplers.sampler import Sampler as Sampler
from lightning_cgrpo.samplers.vllm.server import VLLMServer as VLLMServer
from lightning_cgrpo.scenes.argoverse2 import Argoverse2 as Argoverse2
from lightning_cgrpo.scenes.devkit import NavsimDevkit as NavsimDevkit
from lightning_cgrpo.scenes.files import SceneFiles as SceneFiles
from lightning_cgrpo.scenes.generator import GeneratedScenes as GeneratedScenes
from lightning_cgrpo.scenes.source import SceneSource as SceneSource
from lightning_cgrpo.tasks.driving.observations import Observations as Observations
from lightning_cgrpo.tasks.driving.task import DrivingTask as DrivingTask
from lightning_cgrpo.tasks.driving.thoughts import WrittenThoughts as WrittenThoughts
from lightning_cgrpo.tasks.functions import FunctionTask as FunctionTask
from lightning_cgrpo.tasks.functions import RewardModel as RewardModel
from lightning_cgrpo.tasks.gsm8k import GSM8KTask as GSM8KTask
from lightning_cgrpo.tasks.task import Task as Task

__version__: str
