"""The verifier with 8-bit weights and activations, and drafts that point at it: `python -m harness.quantisation`.

`schemes` holds the arithmetic and what compressed-tensors calls it, `folders` writes what the server reads.
"""
