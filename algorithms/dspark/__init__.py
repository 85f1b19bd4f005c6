"""DSpark: a block draft whose tokens depend on one another through a small table of token pairs. See README.md."""
