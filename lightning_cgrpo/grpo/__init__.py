"""Functions of tensors: advantages, surrogates, losses, minibatches."""
