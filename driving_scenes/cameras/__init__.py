"""Camera views of a scene."""
