"""Names as people read them: variants, benchmarks, splits, scales. Used by tables, figures and text."""

from collections.abc import Iterable

VARIANTS = {"none": "no speculation", "ngram": "n-gram look-up", "suffix": "suffix look-up"}
BENCHMARKS = {"gsm8k": "GSM8K", "gsm8k_5shot": "GSM8K 5-shot", "mt_bench": "MT-Bench"}
LOOK_UPS = {
    "none": "The verifier alone, one token a step.",
    "ngram": "No model: copies what followed the same last tokens earlier in prompt and reply.",
    "suffix": "No model: copies what followed the longest known suffix in earlier replies.",
}
BENCHMARK_NOTES = {
    "word_problems": "made here: arithmetic in one to three steps, behind a solved problem of its kind",
    "instructions": "made here: explain, describe, list, compare, write; free text, no right answer",
    "image_questions": "made here: questions about drawn pictures",
    "gsm8k": "openai/gsm8k: grade-school mathematics",
    "gsm8k_5shot": "openai/gsm8k behind five solved problems",
    "mt_bench": "MT-Bench: open questions in two turns",
}
SCHEMES = ("int8", "fp8")  # verifier in 8 bits
SCALE_LABELS = {"full": "full run", "smoke": "smoke run", "mini": "miniature"}
SCALE_NOTES = {
    "full": "",
    "smoke": "smoke run: cut down to show that every step works. Its figures say nothing about the worth of a draft",
    "mini": "miniature: a tiny verifier of the same architecture. Its figures say nothing about the real model",
}


def variant_label(variant: str) -> str:
    """`no speculation` for `none`, `no speculation, int8` for `none_int8`; an algorithm keeps its name."""
    scheme = quantisation(variant)
    name = variant.removesuffix(f"_{scheme}") if scheme else variant
    return f"{VARIANTS.get(name, name)}, {scheme}" if scheme else VARIANTS.get(name, name)


def quantisation(variant: str) -> str:
    """The scheme of a variant that the verifier serves in 8 bits, "" for others."""
    scheme = variant.rpartition("_")[2]
    return scheme if scheme in SCHEMES else ""


def benchmark_label(benchmark: str) -> str:
    """`word problems` for `word_problems`, `GSM8K` for `gsm8k`, `word problems, give` for `word_problems/give`."""
    return ", ".join(BENCHMARKS.get(part, part.replace("_", " ")) for part in benchmark.split("/"))


def split_label(split: str) -> str:
    """`held out` for `heldout`."""
    return split.replace("heldout", "held out")


def scale_label(scale: str) -> str:
    """`smoke run` for `smoke`."""
    return SCALE_LABELS[scale]


def listed(names: Iterable[str], word: str) -> str:
    """`a`, `a and b`, `a, b and c`."""
    told = list(names)
    return "".join(told) if len(told) < 2 else f"{', '.join(told[:-1])} {word} {told[-1]}"
