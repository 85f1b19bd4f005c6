"""Training: from captured replies and states to a draft checkpoint, for any algorithm of `algorithms`."""
