"""Prompts and their splits."""

from lightning_cgrpo.datamodules.gridworld import GridworldDataModule
from lightning_cgrpo.datamodules.gsm8k import GSM8KDataModule
from lightning_cgrpo.datamodules.navsim import NavsimDataModule, NavsimDemonstrationsDataModule
from lightning_cgrpo.datamodules.prompt import PromptDataModule
from lightning_cgrpo.datamodules.seeds import SeedDataModule
from lightning_cgrpo.datamodules.word_problems import (
    CalculatorDataModule,
    WordProblemDemonstrationsDataModule,
    WordProblemsDataModule,
)

__all__ = [
    "CalculatorDataModule",
    "GSM8KDataModule",
    "GridworldDataModule",
    "NavsimDataModule",
    "NavsimDemonstrationsDataModule",
    "PromptDataModule",
    "SeedDataModule",
    "WordProblemDemonstrationsDataModule",
    "WordProblemsDataModule",
]
