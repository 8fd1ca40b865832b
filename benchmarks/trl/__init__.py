"""This project and TRL side by side on a CPU: `python -m benchmarks.trl`."""
