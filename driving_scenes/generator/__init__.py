"""Endless scenes from random numbers."""

from driving_scenes.generator.generated_scenes import GeneratedScenes

__all__ = ["GeneratedScenes"]
