"""Agents around the ego: replayed or reactive."""
