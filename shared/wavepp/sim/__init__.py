"""The core without machines."""
