"""Bytes between stages: prologues, headers, greetings."""
