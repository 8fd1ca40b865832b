"""LightningModules: rollouts, Constrained GRPO and supervised fine-tuning."""
