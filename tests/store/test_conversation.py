"""Conversations as text: branches, alternating roles, and what fits a context."""

from __future__ import annotations

import json

import pytest

from spec_local.errors import ContextFullError, UsageError
from spec_local.sampling.params import Sampling
from spec_local.session.attachments import Attachment, attached, mentions, with_attachments
from spec_local.session.conversation import Conversation, title_of
from spec_local.session.export import export_to
from spec_local.session.provenance import Origin, ProvenanceDecoder, TokenText, clip, decode, encode, origins
from spec_local.session.result import Piece
from spec_local.session.store import IN_MEMORY, Store
from spec_local.session.store_records import StoredMessage
from spec_local.session.window import fit, reserve_for
from spec_local.speculation.round import Round


@pytest.fixture
def talk() -> Conversation:
    return Conversation(Store(IN_MEMORY))


def answer(talk: Conversation, question: int, text: str) -> int:
    message = talk.begin_answer(question).finish("done", {"text": text})
    talk.refresh()
    return message.id


def exchange(talk: Conversation, *pairs: tuple[str, str]) -> None:
    for question, reply in pairs:
        answer(talk, talk.ask(question).id, reply)


def texts(talk: Conversation) -> list[str]:
    return [m.text for m in talk.path()]


# -- branches ----------------------------------------------------------------------------------------------------------


def test_nothing_is_stored_before_the_first_message():
    store = Store(IN_MEMORY)
    talk = Conversation(store, system="be brief")
    talk.set_system("be long")
    talk.set_sampling("temperature", 0.2)
    assert talk.id is None
    talk.ask("hello")
    again = Conversation(store, talk.id)
    assert (again.system, again.settings, again.title) == ("be long", {"temperature": 0.2}, "hello")


def test_an_edit_is_a_branch_and_both_stay(talk):
    exchange(talk, ("a", "1"), ("b", "2"))
    edited = talk.edit(talk.path()[0].id, "A")
    answer(talk, edited.id, "3")
    assert texts(talk) == ["A", "3"]
    assert len(talk.siblings(edited.id)) == 2
    talk.switch(talk.siblings(edited.id)[0])
    assert texts(talk) == ["a", "1", "b", "2"], "switching goes down to where that branch ended"


def test_only_questions_can_be_edited(talk):
    exchange(talk, ("a", "1"))
    with pytest.raises(UsageError):
        talk.edit(talk.path()[1].id, "x")


def test_a_question_without_an_answer_gives_way_to_the_next(talk):
    exchange(talk, ("a", "1"))
    talk.ask("never answered")
    talk.ask("b")
    assert [(m.role, m.text) for m in talk.turns()] == [("user", "a"), ("assistant", "1"), ("user", "b")]


def test_undo_steps_back_to_before_the_question(talk):
    exchange(talk, ("a", "1"), ("b", "2"))
    assert talk.undo() == "b"
    assert texts(talk) == ["a", "1"]
    assert talk.undo() == "a"
    assert texts(talk) == []
    with pytest.raises(UsageError):
        talk.undo()


def test_an_unknown_sampling_value_is_refused_and_changes_nothing(talk):
    for name, value in (("temprature", 1), ("temperature", -1), ("top_k", "many")):
        with pytest.raises(UsageError):
            talk.set_sampling(name, value)
    with pytest.raises(UsageError):
        talk.set_sampling("temprature", None)
    assert talk.settings == {}


def test_settings_of_the_conversation_win_over_the_command_line(talk):
    talk.set_sampling("temperature", 0.0)
    sampling = talk.sampling(Sampling(temperature=1.0, top_k=5))
    assert (sampling.temperature, sampling.top_k) == (0.0, 5)
    assert sampling.model_fields_set == {"temperature", "top_k"}, "the rest is the model's to recommend"
    talk.set_sampling("temperature", None)
    assert talk.sampling(Sampling(temperature=1.0)).temperature == 1.0


@pytest.mark.parametrize("text", ["Read @a.py.", "(see @a.py)", "@a.py, please", "is it @a.py?", "the file “ @a.py”"])
def test_a_mention_may_end_a_sentence(tmp_path, text):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert attached(text, tmp_path) == (Attachment("a.py", "x = 1\n"),)


def test_a_file_that_is_really_called_so_comes_first(tmp_path):
    (tmp_path / "a.").write_text("dot\n")
    (tmp_path / "a").write_text("plain\n")
    assert attached("Read @a.", tmp_path) == (Attachment("a.", "dot\n"),)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("\n  a  b\nc", "a b"),
        ("", ""),
        ("word " * 40, "word " * 11 + "word…"),
        ("x" * 90, "x" * 60 + "…"),
    ],
)
def test_titles(text, title):
    assert title_of(text) == title


# -- what fits ---------------------------------------------------------------------------------------------------------


def turns(*lengths: int) -> list[StoredMessage]:
    """Turns of so many words; question, answer, question …"""
    return [
        StoredMessage(i, 1, i - 1 or None, "user" if i % 2 == 0 else "assistant", "w " * n, "done", 0.0)
        for i, n in enumerate(lengths)
    ]


def count(messages) -> int:
    return 10 + sum(len(m["content"].split()) + 4 for m in messages)


def test_what_fits_is_left_alone():
    window = fit(turns(50, 50, 50), count, 400, 100)
    assert (window.first, window.tokens) == (0, 172)


def test_oldest_turns_go_until_half_is_free():
    many = turns(*[50] * 15)
    window = fit(many, count, 400, 100)
    assert window.first % 2 == 0
    assert many[window.first].role == "user"
    assert window.tokens <= 200
    assert fit(many, count, 400, 100, first=window.first) == window, "the next prompt keeps the same beginning"


def test_dropped_turns_stay_dropped_while_the_prompt_grows():
    lengths = [50] * 15
    first = fit(turns(*lengths), count, 400, 100).first
    changes = 0
    for _ in range(10):
        lengths += [20, 20]
        window = fit(turns(*lengths), count, 400, 100, first)
        changes += window.first != first
        first = window.first
    assert changes <= 4, "each change costs a whole prefill"


def test_a_long_question_keeps_the_turns_that_still_fit():
    window = fit(turns(20, 20, 20, 20, 250), count, 400, 100)
    assert window.first in (2, 4)
    assert window.tokens <= 300


def test_a_question_that_is_too_long_is_refused_with_its_length():
    with pytest.raises(ContextFullError, match="3014 tokens"):
        fit(turns(20, 20, 3000), count, 1024, 256)


def test_a_question_may_use_the_reserve_where_nothing_else_is_left_to_drop():
    assert fit(turns(20, 20, 330), count, 400, 100).first == 2


@pytest.mark.parametrize(("n_ctx", "max_tokens", "reserve"), [(1024, None, 256), (1024, 50, 50), (1024, 5000, 256)])
def test_reserve(n_ctx, max_tokens, reserve):
    assert reserve_for(n_ctx, max_tokens) == reserve


# -- attachments and export --------------------------------------------------------------------------------------------


def test_mentions():
    assert mentions('see @a.py and @"b c.txt", mail x@y.org, @a.py again') == ["a.py", "b c.txt"]


def test_files_are_attached_and_other_mentions_are_text(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\r\n", newline="")
    assert attached("@a.py @property @ada", tmp_path) == (Attachment("a.py", "x = 1\n"),)


@pytest.mark.parametrize(
    "name", ["missing.txt", "question.tx", "b.PY", "sub/f.md", "./f", "~/no-such-file", "/nowhere"]
)
def test_what_looks_like_a_path_must_be_a_file(tmp_path, name):
    with pytest.raises(UsageError, match=f"There is no file {name}"):
        attached(f"What is in @{name}, please?", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "@ada, @ada.lovelace",
        "@x.setter",
        "@app.get('/items/a.txt')",
        '@app.get("/")',
        "@@ -1,3 +1,4 @@",
        "@example.org",
        "@types/node",
        "@~nobody-here",
        "`@missing.txt`",
        "@ ...",
        "@...",
    ],
)
def test_what_does_not_look_like_a_path_is_text(tmp_path, text):
    assert attached(text, tmp_path) == ()


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\xff\x00", "not UTF-8"), (b"\xff\xfe\x00", "UTF-16"), (b"a\x00b", "not a text"), (b"x" * 1_000_001, "MB")],
)
def test_what_cannot_be_attached(tmp_path, data, reason):
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(UsageError, match=reason):
        attached("@f", tmp_path)


def test_a_fence_in_a_file_does_not_end_its_fence():
    text = with_attachments("look", [Attachment("r.md", "```py\n````\n")])
    assert text == "look\n\nr.md:\n`````md\n```py\n````\n`````"
    assert with_attachments("look", [Attachment("Makefile", "all:")]) == "look\n\nMakefile:\n```\nall:\n```"


def test_export_writes_both_kinds_and_overwrites_nothing(talk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exchange(talk, ("How [bold] / are: you?", "Fine."))
    talk.edit(talk.path()[0].id, "other branch")
    talk.switch(talk.siblings(talk.path()[0].id)[0])
    first, second = export_to(talk), export_to(talk)
    assert first != second
    assert "## You\n\nHow [bold] / are: you?" in first.read_text()
    assert "other branch" not in first.read_text()
    with pytest.raises(UsageError, match="exists"):
        export_to(talk, first)
    with pytest.raises(UsageError, match=r"\.md or \.json"):
        export_to(talk, tmp_path / "x.txt")
    whole = json.loads(export_to(talk, tmp_path / "x.json").read_text())
    assert [m["text"] for m in whole["messages"]] == ["How [bold] / are: you?", "Fine.", "other branch"]


# -- provenance --------------------------------------------------------------------------------------------------------


def played(tested: int, accepted: int, emitted: int) -> Round:
    return Round("text" if tested else "none", 1 + tested, tested, tested, accepted, emitted, 0, 0.01, 0, "")


@pytest.mark.parametrize(
    ("record", "letters"),
    [
        (played(0, 0, 1), "p"),
        (played(4, 4, 5), "aaaab"),
        (played(4, 2, 3), "aac"),
        (played(4, 0, 1), "c"),
        (played(3, 3, 3), "aaa"),  # the text ended inside the draft
    ],
)
def test_origins_of_a_round(record, letters):
    assert "".join(origins(record, record.emitted)) == letters


def test_a_character_in_several_tokens_belongs_to_the_last_one():
    smile = "🙂".encode()
    decoder = ProvenanceDecoder(lambda token: {0: smile[:2], 1: smile[2:], 2: b"!"}[token])
    tokens = decoder.feed(Piece("", (0, 1), played(1, 1, 2))) + decoder.feed(Piece("🙂!", (2,), played(0, 0, 1)))
    assert tokens == [TokenText(Origin.ACCEPTED, ""), TokenText(Origin.BONUS, "🙂"), TokenText(Origin.PLAIN, "!")]
    text = "".join(t.text for t in tokens)
    assert decode(encode(tokens), text) == tokens


def test_tokens_are_clipped_to_the_text():
    tokens = [TokenText(Origin.PLAIN, "abc"), TokenText(Origin.ACCEPTED, "def")]
    assert clip(tokens, 4) == [TokenText(Origin.PLAIN, "abc"), TokenText(Origin.ACCEPTED, "d")]
    assert decode("p2", "abc") == [TokenText(Origin.PLAIN, "ab"), TokenText(Origin.PLAIN, "c")]
