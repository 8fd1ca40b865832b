"""The lanes that lead to the goal."""
