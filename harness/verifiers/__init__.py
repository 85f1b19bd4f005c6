"""Where a verifier comes from: `python -m harness.verifiers` leaves one folder in Hugging Face layout under models/.

`prepare` makes and checks the folder; `weights` reads from it what drafts take over. Every later step uses it.
"""
