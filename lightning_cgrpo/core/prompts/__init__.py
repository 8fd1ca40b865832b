"""Prompts: read from files, drawn by index, batched, and made ahead by another process."""
