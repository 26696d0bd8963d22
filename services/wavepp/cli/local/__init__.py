"""`wavepp up`: a whole mesh on this machine."""
