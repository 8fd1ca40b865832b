"""Callbacks for the driving task."""
