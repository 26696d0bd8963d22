"""`wavepp demo`: the main job on a real model, checked."""
