"""Drafts of other projects into checkpoints that vLLM serves: `python -m harness.checkpoint convert`. See README.md."""
