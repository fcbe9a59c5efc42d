"""Runs from their start to their end: one, one that goes on, one that learns more, several side by side."""
