"""Answers computed with their shared prompt once, in training and in generation.

G answers of C tokens to a prompt of P tokens are G (P + C) tokens in padded rows, and P + G C in a packed row.
`layout` describes a packed row, `attention` replaces the attention of transformers, `cascade` has its backward pass,
`decoding` keeps keys and values during generation, and `support` tells which models allow this exactly.
"""
