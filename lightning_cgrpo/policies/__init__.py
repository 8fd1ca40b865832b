"""Policies: networks that answer prompts, and their log-probabilities."""

from lightning_cgrpo.policies.policy import Policy

__all__ = ["Policy"]
