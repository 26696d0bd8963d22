"""The `wavepp` command."""
