"""Planners without knowledge of the future."""
