"""The command line: from arguments to a run, and errors of one line."""
