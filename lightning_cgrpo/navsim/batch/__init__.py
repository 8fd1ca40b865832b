"""Scenes as padded tensors."""
