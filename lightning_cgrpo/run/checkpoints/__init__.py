"""Checkpoints: reading, checking, writing, and termination."""
