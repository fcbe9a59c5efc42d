"""The engine: the loop, a stage's coordinates, a step, memory, and the checks at the plugins' boundary."""
