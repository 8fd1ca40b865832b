"""Vehicles of reactive traffic, which drive along lanes by the Intelligent Driver Model.

See docs/navsim_score.md §10.
"""
