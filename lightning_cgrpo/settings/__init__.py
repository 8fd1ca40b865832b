"""From files to values: the configuration, its keys, the signatures of classes, and the effect of each setting."""
