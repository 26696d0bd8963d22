"""What the router decides: the queue, attempts, waves, answers, epochs."""
