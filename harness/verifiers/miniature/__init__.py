"""Miniature verifiers: a family's architecture and chat format at one to five million parameters, trained here.

`build` trains one from the project's own text (`corpus`) with its own `tokenizer`; `families` says what a family is.
Called by `harness.verifiers.sources`. Random weights will not do: acceptance and accuracy would mean
nothing.
"""
