"""Scores and use of images for `study configs/studies/navsim.yaml`."""
