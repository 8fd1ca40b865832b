"""Callbacks of the driving task."""
