"""Critics: value networks, generalized advantages, and the estimators that PPO needs."""
