"""The Inception network that FID and its kin look through: its file, its input, what is kept of its output."""
