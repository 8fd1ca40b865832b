"""Vehicles that drive along lanes by the Intelligent Driver Model (IDM). See docs/navsim_score.md §10."""
