"""`wavepp model`: checkpoints on this machine."""
