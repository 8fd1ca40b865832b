"""Models and tokenizers small enough to build in a second."""
