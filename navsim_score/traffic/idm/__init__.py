"""Vehicles on lanes by the Intelligent Driver Model (IDM). docs/navsim_score.md §10."""
