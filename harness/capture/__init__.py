"""Replies and hidden states of the verifier in one pass, and the store that keeps them."""
