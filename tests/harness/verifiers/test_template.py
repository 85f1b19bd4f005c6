"""Variables that are fixed in a verifier's own chat template: whoever renders it gets the same prompt."""

import json
import os
from pathlib import Path

import jinja2
import pytest

from harness.errors import UserError
from harness.verifiers.template import fix_variables

TEMPLATE = (
    "{% for message in messages %}{{ message.content }}|{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{{ effort }}"
)


def _render(template: str, **variables: object) -> str:
    return jinja2.Environment().from_string(template).render(messages=[{"content": "Hi?"}], **variables)


def _stored(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    return (
        path.read_text()
        if path.exists()
        else json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    )


@pytest.fixture(params=["own file", "tokenizer's"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A verifier's folder with the template in either of its two places."""
    if request.param == "own file":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
        (tmp_path / "tokenizer_config.json").write_text("{}")
    else:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "other": "é"}))
    return tmp_path


def test_a_fixed_variable_holds_whatever_the_caller_says(folder: Path):
    assert _render(TEMPLATE) == "Hi?|"
    fix_variables(folder, {"enable_thinking": False, "effort": 'a "low" one'})
    for asked in ({}, {"enable_thinking": True, "effort": "high"}):
        assert _render(_stored(folder), **asked) == 'Hi?|<think></think>a "low" one'


def test_nothing_to_fix_changes_nothing_and_the_rest_of_the_file_stays(folder: Path):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    fix_variables(folder, {})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    fix_variables(folder, {"effort": 3})
    assert _render(_stored(folder)) == "Hi?|3"
    assert json.loads((folder / "tokenizer_config.json").read_text()).get("other") in (None, "é")


def test_a_file_that_is_linked_elsewhere_is_not_written_through(tmp_path: Path):
    (tmp_path / "cache").mkdir()
    source = tmp_path / "cache" / "chat_template.jinja"
    source.write_text(TEMPLATE)
    os.link(source, tmp_path / "chat_template.jinja")
    fix_variables(tmp_path, {"effort": 1})
    assert source.read_text() == TEMPLATE != _stored(tmp_path)


def test_a_variable_that_the_template_does_not_read_is_refused(folder: Path):
    with pytest.raises(UserError, match=r"verifier\.template\.thinking_off: its chat template reads no such variable"):
        fix_variables(folder, {"thinking_off": True})
