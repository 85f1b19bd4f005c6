"""Training: from captured replies and states to a draft checkpoint, for any algorithm of `algorithms`."""

import os

# Read when torch loads. GCC's threads spin at a barrier for milliseconds; with another process on one of the cores a
# step then took three times as long. This many spins keep the quiet speed and halve that loss.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
# Every pack has shapes of its own, and oneDNN keeps what it made for each of the last 1,024 shapes: 350 MB in the end.
# A step meets about 100, most of them in every step.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "256")
