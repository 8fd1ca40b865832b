"""Experiments of many runs: resumable, on all cores, reported."""
