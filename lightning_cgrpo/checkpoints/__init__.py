"""Checkpoints: reading, checking, writing, and the checkpoint at the end of a terminated run."""
