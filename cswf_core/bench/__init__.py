"""How fast a step is: what is measured, against what, and how it is shown."""
