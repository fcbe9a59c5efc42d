"""The engine: the flow, its stages and steps, and how they are computed."""
