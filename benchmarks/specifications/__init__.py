"""Specifications, and how many training runs it takes until each has a certified policy."""
