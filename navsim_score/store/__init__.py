"""Scenes prepared once for the score, in a file that is read by memory map."""
