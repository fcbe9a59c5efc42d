"""Coordinates that flows take their steps in, one plugin per file."""
