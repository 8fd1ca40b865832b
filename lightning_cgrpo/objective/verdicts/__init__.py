"""Statistics of rates: bounds, tests and sample sizes, as functions of numbers."""
