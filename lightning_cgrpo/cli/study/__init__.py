"""The command ``study``: train, compare and report variants over several seeds."""
