"""EAGLE-3: a one-layer draft that reads three verifier states and feeds its own state back. See README.md."""
