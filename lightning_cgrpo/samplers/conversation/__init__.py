"""Conversations of several turns, in which a policy calls tools."""
