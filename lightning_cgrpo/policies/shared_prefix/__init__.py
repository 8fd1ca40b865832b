"""Answers computed with their shared prompt once.

G answers of C tokens to a prompt of P tokens are G (P + C) tokens in padded rows, and P + G C in a packed row.
"""
