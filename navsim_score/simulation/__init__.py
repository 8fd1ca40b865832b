"""The vehicle follows a trajectory."""
