"""A run: its record, and what the record advises."""
