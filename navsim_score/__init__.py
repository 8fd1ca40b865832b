"""NAVSIM-v2 score of driving plans; needs neither Lightning nor transformers."""
