"""Prompts: `python -m harness.data` writes train.jsonl, heldout.jsonl and sources.json.

`chat` turns messages into the token ids that the server makes of them; every step that talks to a verifier uses it.
"""
