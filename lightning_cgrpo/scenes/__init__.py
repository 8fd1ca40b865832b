"""Driving scenes and their sources."""
