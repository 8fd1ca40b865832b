"""Measurements and reproductions, each a command."""
