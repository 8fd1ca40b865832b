"""The driving comparison on generated scenes beside `study configs/studies/navsim.yaml`: scores, and use of images."""
