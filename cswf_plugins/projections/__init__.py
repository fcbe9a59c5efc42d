"""Samplers of directions, one plugin per file."""
