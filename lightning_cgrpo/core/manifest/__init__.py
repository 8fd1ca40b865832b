"""What a run was made of: settings, prompts, code of the user, starting model and versions."""
