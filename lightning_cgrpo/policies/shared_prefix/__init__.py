"""Answers that share a prompt, computed with the prompt once: in training, and token by token.

G answers of C tokens to a prompt of P tokens are G (P + C) tokens to a trainer that pads each into a row of its own,
and P + G C here. `layout` says where what is in one packed row without padding; `attention` is what transformers calls
in the place of its own; `cascade` is the part of it that needs a backward pass of its own; `decoding` keeps keys and
values while answers are generated; `support` says which models this is exact for.
"""
