"""Between the core's events and the wire: both halves of every message between two state machines."""
