"""The Inception network of FID and its kin: its file, the resizing of images, and the features it gives."""
