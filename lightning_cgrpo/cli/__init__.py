"""From command-line arguments to a run."""
