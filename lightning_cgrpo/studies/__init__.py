"""The command ``study``: variants of a configuration, several seeds each, trained, compared and reported."""
