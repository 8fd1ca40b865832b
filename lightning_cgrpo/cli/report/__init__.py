"""Figures and tables of finished and running runs, without torch."""
