"""Metrics of generated samples, one plugin per file."""
