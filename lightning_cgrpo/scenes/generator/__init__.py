"""Endless scenes from random numbers."""

from lightning_cgrpo.scenes.generator.generated_scenes import GeneratedScenes

__all__ = ["GeneratedScenes"]
