"""From files to values: the configuration, its keys, the signatures of classes, and what each setting changes."""
