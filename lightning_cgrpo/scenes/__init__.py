"""Driving scenes and where they come from."""
