"""Fuzzing: a million hostile files and command lines, each answered with a result or with one sentence.

`make fuzz`, or `python -m tests.fuzz --inputs 1000000 --seed 0`. Input number n of a target and a seed is
always the same, so that `python -m tests.fuzz --target model --seed 0 --input 1234` does that one again.
"""
