"""The sub-scores of a simulated drive."""
