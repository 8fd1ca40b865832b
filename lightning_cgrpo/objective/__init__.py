"""What a user asks for: rewards, constraints, and the rates that are measured of them."""
