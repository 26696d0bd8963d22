"""Between the core's events and the wire: both halves of every internal message, side by side."""
