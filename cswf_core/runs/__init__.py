"""A run's folder on disk: its files, the observers that fill it, and its pictures."""
