"""The paper's gridworld: `python -m benchmarks.gridworld.run`."""
