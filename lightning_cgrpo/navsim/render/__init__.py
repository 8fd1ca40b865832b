"""Pictures of scored drives."""
