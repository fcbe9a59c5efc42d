"""Things that watch a run because a recipe asks for them, one plugin per file."""
