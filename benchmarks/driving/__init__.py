"""The driving score: parity of means, generated scenes, speed."""
