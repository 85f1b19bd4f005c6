"""DFlash2: DFlash with dynamic convolutions inside the block and a selector that chains candidates. See README.md."""
