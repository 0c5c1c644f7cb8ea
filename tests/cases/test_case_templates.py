"""Cases 31–33: begin-of-text written once, templates that refuse, are missing, or are broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from patched_gguf import patched, retemplated
from tiny_gguf import TEMPLATE, write_transformer

import spec_local
from spec_local.errors import ModelError
from spec_local.session.generation import Request
from spec_local.session.options import EngineOptions

REFUSES = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def _real(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pulled model's file, found in the ordinary cache; skips where it is not there."""
    monkeypatch.delenv("SPEC_LOCAL_MODELS")
    monkeypatch.delenv("SPEC_LOCAL_HOME")
    try:
        return spec_local_resolve(name)
    except ModelError as error:
        pytest.skip(str(error))
    finally:
        monkeypatch.setenv("SPEC_LOCAL_HOME", str(home))


def spec_local_resolve(name: str) -> Path:
    from spec_local.models_manifest import resolve_model

    return resolve_model(name).path


def _tokens(path: Path, prompt: str, draft: Path | str = "none", **how: object) -> tuple[list[int], int, list[str]]:
    """Prompt ids, the id of begin-of-text, and the notices."""
    options = EngineOptions(threads=1, n_ctx=256)
    with spec_local.load(path, draft=draft, options=options) as engine:
        tokens, notices = engine.tokenize(Request(prompt, spec_local.Sampling(), **how))  # type: ignore[arg-type]
        return tokens, engine.vocabulary.bos, [*engine.notices, *notices]


# -- 31 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [TEMPLATE, "{{ bos_token }}" + TEMPLATE])
@pytest.mark.parametrize("adds", [True, False])
def test_begin_of_text_is_written_once_whoever_writes_it(tmp_path, template, adds):
    path = write_transformer(tmp_path / "m.gguf", template=template, add_bos=adds)
    tokens, bos, _ = _tokens(path, "hello")
    assert tokens.count(bos) == int(adds or "bos_token" in template)
    if adds:
        assert tokens[0] == bos


def test_a_raw_prompt_that_begins_with_it_gets_no_second_one(tmp_path):
    path = write_transformer(tmp_path / "m.gguf", add_bos=True)
    written, bos, _ = _tokens(path, "<|endoftext|>hello", raw=True)
    added, _, _ = _tokens(path, "hello", raw=True)
    assert written == added
    assert written.count(bos) == 1


def test_the_draft_is_fed_the_targets_ids(tmp_path, run):
    path = write_transformer(tmp_path / "t.gguf", add_bos=True, template="{{ bos_token }}" + TEMPLATE)
    draft = write_transformer(tmp_path / "d.gguf", add_bos=True, near=0.1)
    settings = ("--draft-length", 3, "--max-tokens", 12, "--temperature", 0)
    done = run("generate", "-m", path, "-d", draft, "-p", "hello", "--json", *settings)
    said = json.loads(done.out)
    assert done.code == 0
    assert said["usage"]["prompt_tokens"] == len(_tokens(path, "hello")[0])
    assert said["speculation"]["sources"]["model"]["accepted"] > 0
    assert said["notices"] == []


@pytest.mark.models
@pytest.mark.slow
def test_gemma_gets_exactly_one(home, monkeypatch):
    path = _real("gemma-3-270m", home, monkeypatch)
    assert _tokens(path, "2+2?")[0].count(2) == 1
    assert _tokens(path, "<bos>2+2?", raw=True)[0].count(2) == 1
    assert _tokens(path, "2+2?", raw=True)[0].count(2) == 1


# -- 32 ------------------------------------------------------------------------------------------------------------


def test_a_refused_system_message_leads_the_users(tmp_path, answer):
    path = write_transformer(tmp_path / "m.gguf", template=REFUSES)
    done = answer("-m", path, "-d", "none", "--system", "Be brief.", "--json")
    merged = json.loads(done.out)
    assert done.code == 0
    assert "put in front of the first user message" in merged["notices"][-1]
    by_hand = json.loads(answer("-m", path, "-d", "none", "-p", "Be brief.\n\nhello", "--json").out)
    assert merged["token_ids"] == by_hand["token_ids"]
    assert merged["usage"] == by_hand["usage"]
    assert by_hand["notices"] == []


def test_a_refused_conversation_fails_its_line_and_no_other(tmp_path, answer):
    path = write_transformer(tmp_path / "m.gguf", template=REFUSES)
    lines = [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "there"}]},
        {"prompt": "hello"},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    files = ("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    done = answer("-m", path, "-d", "none", *files, "--parallel", 2)
    records = {record["line"]: record for record in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert done.code == 1
    assert "error" not in records[1]
    assert "Roles must alternate" in records[2]["error"]["message"]
    assert "\n" not in records[2]["error"]["message"]
    assert "error" not in records[3]


@pytest.mark.models
@pytest.mark.slow
def test_smollm_with_a_template_that_refuses(tmp_path, home, monkeypatch, answer):
    path = retemplated(_real("smollm2-135m-instruct", home, monkeypatch), tmp_path / "s.gguf", REFUSES)
    done = answer("-m", path, "-d", "none", "--system", "Answer in one word.", "-p", "The capital of France?")
    assert done.code == 0
    assert "put in front of the first user message" in done.err
    assert done.out.strip()


# -- 33 ------------------------------------------------------------------------------------------------------------


def test_a_missing_template_is_named_and_replaced(tmp_path, answer):
    path = write_transformer(tmp_path / "m.gguf", template=None)
    done = answer("-m", path, "-d", "none")
    assert done.code == 0
    assert "brings no chat template; ChatML is used" in done.err
    assert "--chat-template" in done.err
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    supplied = answer("-m", path, "-d", "none", "--chat-template", tmp_path / "mine.jinja", "--json")
    assert json.loads(supplied.out)["usage"]["prompt_tokens"] == len("[hello]")
    assert "ChatML" not in supplied.err


def test_a_broken_template_is_reported_at_load_and_refused_when_needed(tmp_path, answer):
    path = write_transformer(tmp_path / "m.gguf", template="{% for m in messages %}{{ m.content }")
    chat = answer("-m", path, "-d", "none")
    assert chat.code == 3
    assert "syntax error in line 1" in chat.err
    raw = answer("-m", path, "-d", "none", "--raw")
    assert raw.code == 0
    assert raw.out
    assert "syntax error in line 1" in raw.err, "said at load, although this request does not need it"


def test_a_broken_template_of_the_users_own_is_refused_at_load(tmp_path, target, answer):
    (tmp_path / "mine.jinja").write_text("{% if %}")
    done = answer("-m", target, "-d", "none", "--raw", "--chat-template", tmp_path / "mine.jinja")
    assert done.code == 3
    assert f"{tmp_path / 'mine.jinja'} has a syntax error" in done.err
    gone = answer("-m", target, "-d", "none", "--chat-template", tmp_path / "none.jinja")
    assert gone.code == 3
    assert "cannot be read" in gone.err


def test_raw_prompts_of_a_batch_need_no_template(tmp_path, answer):
    path = write_transformer(tmp_path / "m.gguf", template="{% broken")
    (tmp_path / "in.jsonl").write_text('{"prompt": "hello"}\n{"prompt": "there"}\n')
    files = ("--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    done = answer("-m", path, "-d", "none", "--raw", *files, "--parallel", 1)
    assert done.code == 0
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2


@pytest.mark.models
@pytest.mark.slow
def test_smollm_with_its_template_renamed(tmp_path, home, monkeypatch, answer):
    source = _real("smollm2-135m-instruct", home, monkeypatch)
    path = patched(source, tmp_path / "s.gguf", b"tokenizer.chat_template", b"tokenizer.chat_templatX")
    done = answer("-m", path, "-d", "none", "-p", "The capital of France?")
    assert done.code == 0
    assert "ChatML is used" in done.err
    assert "ChatML" not in answer("-m", path, "-d", "none", "-p", "The capital of France is", "--raw").err
