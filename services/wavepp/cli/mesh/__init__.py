"""Commands that talk to a running mesh: prefill, status, trace, health."""
