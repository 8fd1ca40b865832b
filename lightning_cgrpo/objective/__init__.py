"""Objective: rewards, constraints, and measured rates."""
