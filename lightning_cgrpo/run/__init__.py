"""Runs: identity, name and place, record, manifest, looks and certificates, checkpoints."""
