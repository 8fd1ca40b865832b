"""Batched boxes, polygons and polylines."""
