"""Needs of a run (``plan``), from its configuration and the model's config.json alone.

Letters of the formulas: D width, F width of feed-forward layers, L layers, H heads of queries, K heads of keys and
values, d size of a head, V vocabulary; B prompts of a process, G answers to each, P tokens of a prompt, C tokens of an
answer, S tokens of a packed row; N GPUs. GB are 10^9 bytes.
"""
