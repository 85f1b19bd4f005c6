"""Prompts as the server renders them, and the loss mask, token by token."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from harness.data.chat import PromptRejected, load_tokenizer, loss_mask, prompt_token_ids
from harness.errors import UserError
from tests import toy

STRICT = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}"
)
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'].split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
OWN_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + toy.CHAT_TEMPLATE
)
TOOLS = (
    "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}"
    "{{ m['tool_calls'] | tojson if m['tool_calls'] else '' }}\n{% endfor %}"
)
QUESTION = [{"role": "user", "content": "How many?"}]


def tokenizer(template=toy.CHAT_TEMPLATE, backend=None):
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend or toy.tokenizer(),
        bos_token=toy.TURN_START,
        eos_token=toy.TURN_END,
        pad_token=toy.END_OF_TEXT,
    )
    made.chat_template = template
    return made


def test_the_prompt_ends_where_the_reply_starts():
    ids = prompt_token_ids(tokenizer(), QUESTION)
    assert tokenizer().decode(ids) == "<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n"
    assert ids[0] == toy.TURN_START_ID and ids.count(toy.TURN_END_ID) == 1


def test_a_tokenizer_that_adds_a_start_token_does_not_double_the_templates_own():
    backend = toy.tokenizer()
    start = (toy.TURN_START, toy.TURN_START_ID)
    backend.post_processor = TemplateProcessing(single=f"{toy.TURN_START} $A", special_tokens=[start])
    adding = tokenizer(backend=backend)
    assert adding("x").input_ids[0] == toy.TURN_START_ID, "the fixture does not add a start token"
    assert prompt_token_ids(adding, QUESTION) == prompt_token_ids(tokenizer(), QUESTION)


@pytest.mark.parametrize(
    ("system_prompt", "said"),
    [(None, "system\nBe kind."), ("Be brief.", "system\nBe brief.")],
)
def test_a_system_prompt_takes_the_place_of_the_templates_own(system_prompt, said):
    rendered = tokenizer().decode(prompt_token_ids(tokenizer(OWN_SYSTEM), QUESTION, system_prompt))
    assert rendered.startswith(f"<|im_start|>{said}<|im_end|>\n") and rendered.count("system") == 1


def test_a_conversation_that_the_template_refuses_is_rejected_with_the_templates_reason():
    with pytest.raises(PromptRejected, match="roles must alternate"):
        prompt_token_ids(tokenizer(STRICT), [{"role": "assistant", "content": "Hello."}])


def test_an_unknown_role_is_named_and_never_taken_for_the_assistant():
    with pytest.raises(PromptRejected, match="unknown role 'critic'"):
        prompt_token_ids(tokenizer(), [*QUESTION, {"role": "critic", "content": "Wrong."}])


def test_a_tool_call_and_its_result_reach_the_template():
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    turns = [*QUESTION, call, {"role": "tool", "content": "three"}]
    rendered = tokenizer().decode(prompt_token_ids(tokenizer(TOOLS), turns))
    assert '"name": "add"' in rendered and "tool:three" in rendered


def test_loss_falls_on_the_reply_and_its_end_token_by_token():
    prompt = prompt_token_ids(tokenizer(), QUESTION)
    reply = [*tokenizer().encode("Six.", add_special_tokens=False), toy.TURN_END_ID]
    ids = prompt + reply
    expected = [("prompt", i) for i in prompt] + [("reply", i) for i in reply]
    marked = [("reply" if on else "prompt", i) for i, on in zip(ids, loss_mask(len(prompt), len(ids)), strict=True)]
    assert marked == expected
    assert tokenizer().decode([i for kind, i in marked if kind == "reply"]) == "Six.<|im_end|>"


def test_all_of_a_thinking_reply_carries_loss_and_the_templates_opening_tag_none():
    """The generation prompt opens the tag; rendering the reply again would lose the thinking: ids stay as served."""
    thinking = tokenizer(THINKING)
    prompt = prompt_token_ids(thinking, QUESTION)
    served = [*thinking.encode("two and four</think>Six.", add_special_tokens=False), toy.TURN_END_ID]
    ids, mask = prompt + served, loss_mask(len(prompt), len(prompt) + len(served))
    assert thinking.decode(prompt).endswith("<think>\n")
    assert [i for i, on in zip(ids, mask, strict=True) if on] == served
    again = thinking.apply_chat_template(
        [*QUESTION, {"role": "assistant", "content": "<think>\ntwo and four</think>Six."}], return_dict=False
    )
    assert again != ids, "the fixture's template keeps the thinking, so this test shows nothing"


@settings(deadline=None)
@given(total_len=st.integers(0, 200), data=st.data())
def test_the_mask_has_one_entry_a_token_and_is_one_span_at_the_end(total_len, data):
    prompt_len = data.draw(st.integers(0, total_len))
    mask = loss_mask(prompt_len, total_len)
    assert len(mask) == total_len
    assert mask == sorted(mask)
    assert sum(mask) == total_len - prompt_len


def test_a_prompt_longer_than_its_document_is_an_error():
    with pytest.raises(ValueError, match="prompt_len 5"):
        loss_mask(5, 4)


def test_a_verifier_without_a_chat_template_is_named(tmp_path):
    toy.write_tokenizer(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"no chat template\. Fix: "):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"tokenizer_config\.json"):
        load_tokenizer(tmp_path / "nowhere")
