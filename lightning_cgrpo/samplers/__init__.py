"""Samplers: how a policy answers a batch of prompts."""

from lightning_cgrpo.samplers.sampler import Sampler

__all__ = ["Sampler"]
