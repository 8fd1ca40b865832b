"""The driving comparison on generated scenes: `python -m benchmarks.navsim.run`."""
