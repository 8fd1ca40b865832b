"""Policies: networks that answer prompts, and log-probabilities of the answers."""

from lightning_cgrpo.policies.policy import Policy

__all__ = ["Policy"]
