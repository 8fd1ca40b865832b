"""Driving, scored as NAVSIM v2 does. Needs torch, scipy and shapely, and matplotlib for pictures; nothing else."""
