"""Vehicles of reactive traffic, which drive along lanes by the Intelligent Driver Model. See NAVSIM.md 1.10."""
