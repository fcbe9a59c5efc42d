"""Fuzzing: hostile files and command lines, each answered with a result or with one sentence.

`make fuzz` reads a million, `make test` some hundred of each target. Hypothesis draws them from strategies that
know the formats, finds the smallest that fails, and prints what reads that one again: see CONTRIBUTING.md.
"""
