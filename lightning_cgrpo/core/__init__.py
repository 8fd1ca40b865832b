"""Parts that every room uses: rollouts, prompts, randomness, collectives, errors, output."""
