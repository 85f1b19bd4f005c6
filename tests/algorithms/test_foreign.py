"""The books of a translation: no tensor and no key goes astray, and a table of a vocabulary is read as what it is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithms.contract import VerifierWeights
from algorithms.foreign import Answers, Case, Fields, ForeignError, Ledger, plain_name
from algorithms.foreign_parts import rope_of, same, vocabulary_tables

VOCABULARY = 24
KEPT = st.sets(st.integers(0, VOCABULARY - 1), min_size=1, max_size=VOCABULARY - 1).map(sorted)


def case(tensors, answers=None, **config) -> Case:
    verifier = VerifierWeights({"vocab_size": VOCABULARY, "num_hidden_layers": 4}, *[torch.zeros(1)] * 3)
    return Case(Fields(config), Ledger(tensors), verifier, answers or Answers())


@given(kept=KEPT, absolute=st.booleans(), marked=st.booleans())
def test_either_kind_of_table_gives_the_same_targets_or_a_question(kept, absolute, marked):
    target_D = torch.tensor(kept)
    table = target_D if absolute else target_D - torch.arange(len(kept))
    tensors = {"d2t": table} | ({"t2d": torch.isin(torch.arange(VOCABULARY), target_D)} if marked else {})
    under_way = case(tensors)
    try:
        vocabulary_tables(under_way, len(kept))
    except ForeignError as error:
        assert "pass --d2t" in str(error)
        under_way = case(tensors, Answers(d2t="targets" if absolute else "offsets"))
        vocabulary_tables(under_way, len(kept))
    found = under_way.ledger.tensors
    assert torch.equal(found["d2t"] + torch.arange(len(kept)), target_D)
    assert found["t2d"].nonzero().flatten().tolist() == kept


@given(kept=KEPT, absolute=st.booleans())
def test_with_the_marks_of_the_targets_a_table_needs_no_question(kept, absolute):
    target_D = torch.tensor(kept)
    offsets_D = target_D - torch.arange(len(kept))
    under_way = case(
        {"d2t": target_D if absolute else offsets_D, "t2d": torch.isin(torch.arange(VOCABULARY), target_D)}
    )
    vocabulary_tables(under_way, len(kept))
    assert torch.equal(under_way.ledger.tensors["d2t"], offsets_D)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "e"]), st.sampled_from(["move", "leave", "split"]), min_size=1)
)
def test_every_tensor_of_a_source_is_accounted_for(moves):
    ledger = Ledger({name: torch.arange(4.0) for name in moves})
    for name, move in moves.items():
        if move == "move":
            ledger.move(name, f"new.{name}")
        elif move == "leave":
            ledger.leave_out(name, "a reason")
        else:
            ledger.split(name, [f"{name}.0", f"{name}.1"], [1, 3])
    ledger.carry(
        {}, {name: (size,) for at in moves for name, size in ((f"new.{at}", 4), (f"{at}.0", 1), (f"{at}.1", 3))}
    )
    assert {name.partition(" [")[0] for name in ledger.went} == set(moves)
    assert sum(t.numel() for t in ledger.tensors.values()) == 4 * sum(move != "leave" for move in moves.values())


def test_keys_that_nobody_read_are_known_in_sections_too():
    fields = Fields({"read": 1, "unread": 2, "use_cache": True, "nothing": None, "part": {"read": 1, "unread": 2}})
    fields.get("read")
    fields.part("part").get("read")
    assert fields.unread() == ["unread", "part.unread"]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("midlayer.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("module.draft_model.midlayer.hidden_norm.weight", "layers.0.hidden_norm.weight"),
        ("model.layers.1.mlp.up_proj.weight", "layers.1.mlp.up_proj.weight"),
        ("logit_head.markov_head.markov_w1.weight", "markov_head.markov_w1.weight"),
        ("fc.weight", "fc.weight"),
    ],
)
def test_a_tensors_name_is_freed_of_what_trainers_put_around_it(name, plain):
    assert plain_name(name) == plain


def test_rope_is_written_in_one_form_whatever_the_source_has():
    old = case({}, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    new = case({}, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5})
    assert rope_of(old, 8) == rope_of(new, 8) == {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    assert rope_of(case({}), 8, 1e4) == {"rope_type": "default", "rope_theta": 1e4}
    with pytest.raises(ForeignError, match="rope_theta: missing"):
        rope_of(case({}), 8)


def test_tensors_are_compared_in_the_narrower_dtype_of_the_two():
    fine = torch.tensor([1.0, 1.0 + 2**-9, 3e-8])
    assert same(fine.bfloat16(), fine) and same(fine, fine.bfloat16()) and same(fine.half(), fine)
    assert not same(fine, fine + 1e-3) and not same(fine, fine[:2])
