"""P-EAGLE: EAGLE-3's network drafts all tokens in one pass, masks standing for what it has not seen. See README.md."""
