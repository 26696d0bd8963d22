"""What a stage runs: checkpoints, forwards, attention, emulation."""
