"""Observers of a run that a recipe can name, one plugin per file."""
