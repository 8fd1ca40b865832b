"""Policies: networks that answer prompts."""

from lightning_cgrpo.policies.policy import Policy

__all__ = ["Policy"]
