"""How the car follows a plan."""
