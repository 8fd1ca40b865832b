"""Vehicles on lanes by the Intelligent Driver Model (IDM). docs/navsim_score_scenes.md §10."""
