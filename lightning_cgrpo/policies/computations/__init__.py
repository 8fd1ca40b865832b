"""Ways to compute a language model's log-probabilities, a class each; `comparison.choose` picks one at loading.

- `PackedPrompts`: one packed row, each prompt once for all its answers.
- `PaddedRows`: a row for each answer, with its own copy of the prompt.
- `SingleRows`: a pass for each answer, without padding.
- `ByLength`: one of them for texts up to a length, and `SingleRows` for longer texts.
"""
