"""What is not converted is refused by name, with the field and the fix, and nothing is written."""

import json
import re

import pytest
import torch

from algorithms.foreign import Answers
from harness.checkpoint import read_checkpoint
from harness.checkpoint.convert.run import Request, convert
from harness.errors import UserError
from harness.verifiers.weights import load_weights
from tests import toy
from tests.harness.checkpoint.convert import foreign_models as foreign


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return toy.write_verifier(tmp_path_factory.mktemp("verifier"))


def said(source, folder, place, **more) -> str:
    """The refusal of a source; answers of the source's own unless given."""
    answers = Answers(**(source.answers | more.pop("answers", {})))
    request = {"answers": answers, "verifier_name": "models/toy"} | more
    with pytest.raises(UserError) as caught:
        convert(Request(str(source.write(place / "source")), str(folder), place / "out", **request))
    assert not (place / "out").exists()
    message = str(caught.value)
    assert "Fix: " in message and "\n" not in message
    return message


def bias(name, rows):
    return lambda s: s.tensors.update({name: torch.ones(rows)})


def config(**keys):
    return lambda s: s.config.update(keys)


def section(**keys):
    return lambda s: s.config["dflash_config"].update(keys)


def without(name):
    return lambda s: s.tensors.pop(name)


E3, BLOCK, DSPARK = foreign.specforge_eagle3, foreign.zlab_dflash, foreign.specforge_dspark
LAST = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}}
REFUSED = {
    "an unknown tensor": (E3, lambda s: s.tensors.update(gate=torch.ones(3)), r"tensors gate \[3\]"),
    "a missing tensor": (E3, without("midlayer.mlp.up_proj.weight"), "tensors layers.0.mlp.up_proj.weight: missing"),
    "another shape": (E3, config(intermediate_size=95), "tensor layers.0.mlp.down_proj.weight is"),
    "a bias of fc": (E3, bias("fc.bias", 64), "tensors fc.bias: the server would drop"),
    "a bias of the MLP": (E3, bias("midlayer.mlp.up_proj.bias", 96), "layers.0.mlp.up_proj.bias"),
    "biases of normed heads": (BLOCK, bias("layers.1.self_attn.o_proj.bias", 64), "layers.1.self_attn.o_proj.bias"),
    "an unknown key": (E3, config(logit_scale=2.0), "logit_scale: not known in layout specforge-eagle3"),
    "an unknown nested key": (BLOCK, section(use_swa=True), "dflash_config.use_swa: not known"),
    "another activation": (E3, config(hidden_act="gelu"), "hidden_act = 'gelu'"),
    "a quantised draft": (E3, config(quantization_config={"bits": 4}), "quantization_config"),
    "weights of eight bits": (
        E3, lambda s: s.tensors.update({"fc.weight": s.tensors["fc.weight"].to(torch.float8_e4m3fn)}), "fc.weight is",
    ),
    "an unknown rope": (E3, config(rope_scaling={"rope_type": "longrope", "factor": 2.0}), "rope_type = 'longrope'"),
    "two ropes": (E3, config(rope_parameters={"rope_theta": 1.0, "rope_type": "default"}), "beside rope_theta"),
    "a part of each head turned": (E3, config(partial_rotary_factor=0.5), "partial_rotary_factor = 0.5"),
    "a window where the project has none": (E3, config(use_sliding_window=True, sliding_window=8), "layer_types"),
    "one state only": (E3, config(eagle_config={"use_aux_hidden_state": False}), "eagle_config.use_aux_hidden_state"),
    "the last layer's state": (E3, config(**LAST), "layer id 6: trainers read"),
    "ids that do not ascend": (BLOCK, section(target_layer_ids=[0, 4, 2]), r"layer ids \[1, 5, 3\]"),
    "ids beyond the verifier": (BLOCK, section(target_layer_ids=[0, 2, 9]), "outside 0..6"),
    "another verifier's depth": (BLOCK, config(num_target_layers=7), "num_target_layers = 7"),
    "another verifier's tokens": (E3, config(vocab_size=321), "vocab_size = 321"),
    "a head of another size": (E3, config(draft_vocab_size=95), "draft_vocab_size = 95"),
    "no table": (E3, without("d2t"), "tensor d2t: missing"),
    "no head of a part": (E3, without("lm_head.weight"), "draft_vocab_size|lm_head.weight: missing"),
    "tables that disagree": (E3, lambda s: s.tensors["t2d"].fill_(value=True), "neither ascending target ids"),
    "an embedding tied to another head": (
        lambda: E3(size=toy.VOCABULARY, own_embedding=True), config(tie_word_embeddings=True), "tie_word_embeddings",
    ),
    "layers of two kinds": (
        BLOCK, config(layer_types=["full_attention", "sliding_attention"], sliding_window=8), "layer_types: full",
    ),
    "windows without width": (lambda: BLOCK(kind="sliding"), config(), "sliding_window: missing"),
    "a window narrower than a block": (
        lambda: BLOCK(kind="sliding", sliding_window=3, is_causal=False), config(), "sliding_window = 3 in",
    ),
    "scaled embeddings": (BLOCK, section(input_embedding_scale=8.0), "dflash_config.input_embedding_scale = 8.0"),
    "scaled logits": (BLOCK, section(output_multiplier=0.2), "dflash_config.output_multiplier"),
    "capped logits": (BLOCK, section(final_logit_softcapping=20.0), "dflash_config.final_logit_softcapping"),
    "capped logits of the second kind": (
        lambda: foreign.zlab_dflash2(final_logit_softcapping=9.0), config(), "Fix: serve the source itself: vllm serve",
    ),
    "latent attention": (BLOCK, section(attention_mode="mla"), "dflash_config.attention_mode = 'mla'"),
    "another projector": (BLOCK, section(projector_type="domino"), "dflash_config.projector_type"),
    "shifted labels": (BLOCK, section(shift_label=True), "dflash_config.shift_label"),
    "no block size": (BLOCK, config(block_size=None), "block_size: missing"),
    "a gated head": (DSPARK, section(markov_head_type="gated"), "markov_head_type = 'gated'"),
    "a recurrent head": (DSPARK, section(markov_head_type="rnn"), "markov_head_type = 'rnn'"),
    "tensors twice": (E3, lambda s: s.tensors.update({"layers.0.hidden_norm.weight": torch.ones(64)}), "are both"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_server_does_not_compute_is_refused_by_its_name(case, folder, tmp_path):
    make, change, expected = REFUSED[case]
    source = make()
    change(source)
    assert re.search(expected, said(source, folder, tmp_path))


def test_layer_ids_are_asked_for_and_the_usual_ones_are_only_a_hint(folder, tmp_path):
    source = foreign.safeailab_eagle3()
    message = said(source, folder, tmp_path, answers={"aux_layers": None})
    assert "pass --aux-layers" in message and "for 6 layers is 2,3,3: only a hint" in message


def test_layer_ids_given_beside_others_in_the_config_are_a_conflict(folder, tmp_path):
    message = said(foreign.zlab_dflash(), folder, tmp_path, answers={"aux_layers": (0, 2, 4)})
    assert "config.json says target_layer_ids, which is [1, 3, 5]" in message


def test_a_list_of_layers_that_may_be_in_two_counts_has_to_be_confirmed(folder, tmp_path):
    source = foreign.specforge_eagle3(eagle_config={"eagle_aux_hidden_state_layer_ids": [2, 3, 4]})
    assert "pass --aux-layers 2,3,4 or 3,4,5" in said(source, folder, tmp_path)
    request = Request(str(tmp_path / "source"), str(folder), tmp_path / "out", Answers((2, 3, 4)), verifier_name="toy")
    convert(request)
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["eagle_aux_hidden_state_layer_ids"] == [2, 3, 4]


def test_a_missing_mask_token_and_a_missing_depth_are_asked_for(folder, tmp_path):
    source = foreign.specforge_peagle()
    assert "pass --mask-token-id" in said(source, folder, tmp_path / "a", answers={"mask_token_id": None})
    assert "pass --speculative-tokens" in said(source, folder, tmp_path / "b", answers={"speculative_tokens": None})


def test_more_tokens_than_a_block_has_are_refused_by_the_linter(folder, tmp_path):
    message = said(foreign.zlab_dflash(), folder, tmp_path, answers={"speculative_tokens": 5})
    assert "block-size" in message and "not written" in message


@pytest.mark.parametrize("values", ["targets", "offsets"])
def test_a_table_is_read_as_what_its_values_are(values, folder, tmp_path):
    source = foreign.specforge_eagle3()
    kept = source.tensors["d2t"] + torch.arange(96)
    if values == "targets":
        source.tensors["d2t"] = kept
    del source.tensors["t2d"]
    done = convert(Request(str(source.write(tmp_path / "s")), str(folder), tmp_path / "out", verifier_name="toy"))
    _, tensors = read_checkpoint(tmp_path / "out")
    assert torch.equal(tensors["d2t"] + torch.arange(96), kept) and torch.equal(tensors["t2d"].nonzero()[:, 0], kept)
    assert f"d2t holds {values} in the source" in done.report["notes"]
    assert "t2d" in done.report["made"]


def test_a_table_that_both_readings_fit_is_asked_about(folder, tmp_path):
    source = foreign.specforge_eagle3()
    del source.tensors["t2d"]
    source.tensors["d2t"] = torch.arange(96) + 3
    assert "pass --d2t offsets or targets" in said(source, folder, tmp_path)
    convert(
        Request(str(tmp_path / "source"), str(folder), tmp_path / "out", Answers(d2t="targets"), verifier_name="toy")
    )


def test_a_draft_in_the_format_is_not_a_source(folder, tmp_path):
    draft = toy.write_draft(tmp_path / "draft", toy.random_draft(load_weights(folder)), "models/toy")
    with pytest.raises(UserError, match=f"^{re.escape(str(draft))}/config.json: in the speculators format already"):
        convert(Request(str(draft), str(folder), tmp_path / "out"))


def test_an_unknown_layout_names_those_that_are_known(folder, tmp_path):
    source = foreign.specforge_eagle3()
    source.config["architectures"] = ["Eagle3DeepseekV2ForCausalLM"]
    assert "pass --from, one of safeailab-eagle, safeailab-eagle3" in said(source, folder, tmp_path / "a")
    assert "Fix: use z-lab-dflash" in said(source, folder, tmp_path / "b", layout="zlab-dflash")


def test_an_absolute_path_of_the_verifier_is_not_written(folder, tmp_path):
    assert "verifier-path" in said(foreign.specforge_eagle3(), folder, tmp_path, verifier_name=None)


@pytest.mark.parametrize(
    "norm", ["embed_layernorm", "hidden_layernorm", "lm_head_layernorm", "layers.0.input_layernorm"]
)
def test_first_generation_drafts_with_norms_that_are_not_served_are_refused(norm, folder, tmp_path):
    source = foreign.safeailab_eagle(load_weights(folder))
    source.tensors[f"{norm}.weight"] = torch.ones(64)
    assert f"tensor {norm}.weight: the server has no such norm" in said(source, folder, tmp_path)


def test_a_first_generation_draft_with_a_bias_or_a_head_of_its_own_is_refused(folder, tmp_path):
    source = foreign.safeailab_eagle(load_weights(folder))
    source.tensors["fc.bias"] = torch.ones(64)
    assert "fc.bias" in said(source, folder, tmp_path / "a")
    source.tensors["fc.bias"] = torch.zeros(64)
    source.tensors["lm_head.weight"] = torch.ones(toy.VOCABULARY, 64)
    assert "lm_head.weight" in said(source, folder, tmp_path / "b")
