"""The objective: rewards, constraints, and measured rates."""
