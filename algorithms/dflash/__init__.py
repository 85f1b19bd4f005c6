"""DFlash: a draft that writes a whole block of tokens at once, over the verifier's states. See README.md."""
