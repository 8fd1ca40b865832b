"""Planners without knowledge of the future: constant velocity, and PDM-Closed, the official score's expert."""
