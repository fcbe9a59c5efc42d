"""Scores of samples: a run's own, or those in a folder or a file that any program may have made."""
