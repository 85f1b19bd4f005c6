"""A byte-level BPE tokenizer from the miniature's own text.

Called by `build`. A number of up to three digits is one token, and so is its space: the token before a number then says
what it counts, and a small model learns to copy it.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from harness.verifiers.miniature.families import POSITIONS, Family

PATTERN = r" ?[0-9]{1,3}| ?[A-Za-z]+|\n+|[^A-Za-z0-9\s]| +"
WRITTEN_TIMES = 2000  # every conversation has it


def train_tokenizer(family: Family, texts: Iterable[str], vocab_size: int) -> Any:
    """A fast tokenizer with at most `vocab_size` tokens, the family's special tokens and chat template included."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(family.special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(chain(texts, [family.written] * WRITTEN_TIMES), trainer)
    backend.add_special_tokens(list(family.special_tokens))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=family.start,
        eos_token=family.end,
        pad_token=family.special_tokens[0],
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = family.template
    return tokenizer
