#!/bin/sh
# Snakemake calls one program with the names of jobs, and waits 2 s for it.
exec python -m harness.kubernetes cancel "$@"
