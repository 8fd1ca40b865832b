"""``python -m lightning_cgrpo plan``: what a run needs, from its configuration and the model's config.json alone.

`sizes` reads a model without its weights, `workload`, `lengths` and `execution` a run without starting it. `tokens`
counts what an update reads and writes, `activations` and `memory` what a GPU holds in each phase, `traffic` what GPUs
send, `flops` what they compute. `plan` puts them together, `table` shows them, `command` is the entry.

Letters of the formulas: D the model's width, F its feed-forward layers', L layers, H heads of queries, K of keys and
values, d numbers of a head, V tokens of the vocabulary; B prompts of a process, G answers of each, P tokens of a
prompt, C of an answer, S tokens of a packed row; N GPUs. GB are 10^9 bytes.
"""
