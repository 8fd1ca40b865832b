"""Boxes, polygons and polylines as batched tensors."""
