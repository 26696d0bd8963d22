"""Thin wrappers over the libraries, one each."""
