"""Driving, scored as NAVSIM v2 does. Needs torch, and for maps and pictures shapely and matplotlib; nothing else."""
