"""Driving scenes and their sources."""

SCENE_SUFFIX = ".scene.json"
"""End of the names of scene files."""
