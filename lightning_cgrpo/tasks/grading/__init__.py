"""Grading of answers, in processes that import no torch."""
