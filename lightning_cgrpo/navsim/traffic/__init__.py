"""The agents around the ego: replayed from the log, or reactive."""
