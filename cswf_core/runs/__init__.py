"""Runs on the disk: their folder, checkpoints, record and log, and their progress on a terminal."""
