"""`wavepp sim` and `wavepp plan`: the scheduler in virtual time."""
