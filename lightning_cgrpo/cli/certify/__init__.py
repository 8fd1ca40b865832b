"""The command ``certify``: looks at a lineage, their register, verdicts and records."""
