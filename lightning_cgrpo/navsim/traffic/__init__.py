"""The other agents: as logged, or reacting."""
