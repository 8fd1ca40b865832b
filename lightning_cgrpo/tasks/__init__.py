"""Tasks: prompts and signals of answers."""
