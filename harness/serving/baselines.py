"""Drafting that needs no checkpoint: what vLLM is told for it, and which of it this environment can run.

`speculative_config` is called by `harness.slices`, `missing` by `harness.config` and the report.
"""

from importlib.util import find_spec
from typing import Any

from harness.sections.serve import Baselines, Ngram, Suffix

# What vLLM imports for a method beyond itself: distribution and module.
PACKAGES = {"suffix": ("arctic-inference", "arctic_inference")}


def missing(name: str) -> str | None:
    """Why baseline `name` cannot run here, None where it can."""
    distribution, module = PACKAGES.get(name, ("", ""))
    return f"package {distribution} is not installed" if module and find_spec(module) is None else None


def asked_for(baselines: Baselines) -> list[str]:
    """Names of the baselines that the settings have a section for."""
    return [name for name in type(baselines).model_fields if getattr(baselines, name) is not None]


def speculative_config(name: str, baselines: Baselines) -> dict[str, Any]:
    """vLLM's speculative config of baseline `name`, which the settings must have.

    Raises:
        ValueError: the settings have no such baseline.
    """
    settings = getattr(baselines, name, None)
    if settings is None:
        raise ValueError(f"baselines.{name}: missing. Fix: add its section")
    return ngram_config(settings) if isinstance(settings, Ngram) else suffix_config(settings)


def ngram_config(ngram: Ngram) -> dict[str, Any]:
    """Prompt look-up: the draft repeats what followed the same tokens before."""
    return {
        "method": "ngram",
        "num_speculative_tokens": ngram.speculative_tokens,
        "prompt_lookup_min": ngram.lookup_min,
        "prompt_lookup_max": ngram.lookup_max,
    }


def suffix_config(suffix: Suffix) -> dict[str, Any]:
    """Suffix trees over each request alone: a cache over requests would draft one benchmark prompt from the others."""
    return {
        "method": "suffix",
        "num_speculative_tokens": suffix.speculative_tokens,
        "suffix_decoding_max_spec_factor": suffix.tokens_per_matched,
        "suffix_decoding_min_token_prob": suffix.min_probability,
        "suffix_decoding_max_cached_requests": 0,
    }
