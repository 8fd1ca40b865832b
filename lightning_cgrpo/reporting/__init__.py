"""Finished and running runs as figures and tables: ``python -m lightning_cgrpo report``. Without torch."""
