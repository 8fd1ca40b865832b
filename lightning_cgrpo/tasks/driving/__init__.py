"""Driving with a language model: prompts, answers and signals."""
