"""DINOv2's vision transformer: its file, the preparation of images, and the features it gives."""
