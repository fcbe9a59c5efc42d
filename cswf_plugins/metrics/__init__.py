"""Scores of generated samples, one plugin per file."""
