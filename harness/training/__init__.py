"""Training: from captured replies and states to a draft checkpoint, for any algorithm of `algorithms`."""

import os

# Read when torch loads. GCC's threads spin at a barrier for milliseconds; with another process on one of the cores a
# step then took three times as long. This many spins keep the quiet speed and halve that loss.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
