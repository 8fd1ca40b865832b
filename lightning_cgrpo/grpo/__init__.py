"""Advantages, surrogates, losses and minibatches: functions of tensors."""
