"""The conversation store: a tree, crash-safe, migrated, usable by two programs at once."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from spec_local.errors import UsageError
from spec_local.session import store_schema
from spec_local.session.attachments import Attachment
from spec_local.session.provenance import Origin, TokenText
from spec_local.session.store import IN_MEMORY, Store, StoreError
from spec_local.speculation.round import Round


def a_round(accepted: int = 1) -> Round:
    return Round("text", 3, 2, 2, accepted, accepted + 1, 0.001, 0.02, 0.003, "text repeats", 1, 0.02)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "sub" / "c.sqlite3")


def test_a_message_comes_back_as_it_was(store):
    text = "line one\n\tzwei 🧑‍🚀 [bold]x[/] \x1b[31m 'quoted' --"
    talk = store.create("be brief", {"temperature": 0.1})
    message = store.add_question(talk.id, None, text, [Attachment("a b.txt", "inhalt\n")])
    again = Store(store.path).messages(talk.id)[0]
    assert again == message
    assert again.text == text
    assert again.attachments == (Attachment("a b.txt", "inhalt\n"),)
    assert Store(store.path).conversation(talk.id).settings == {"temperature": 0.1}


def test_an_answer_on_its_way_is_readable_at_every_flush(store):
    talk = store.create()
    question = store.add_question(talk.id, None, "q")
    writer = store.begin_answer(talk.id, question.id)
    other = Store(store.path)
    for n in range(1, 4):
        writer.append("ab ", [TokenText(Origin.ACCEPTED, "a"), TokenText(Origin.BONUS, "b ")], [a_round()])
        seen = other.message(writer.message)
        assert (seen.text, seen.state) == ("ab " * n, "writing")
        assert len(other.rounds(writer.message)) == n
        assert [t.origin for t in other.tokens(writer.message)] == [Origin.ACCEPTED, Origin.BONUS] * n


def test_a_finished_answer_has_everything_and_its_pieces_are_gone(store):
    talk = store.create()
    question = store.add_question(talk.id, None, "q")
    writer = store.begin_answer(talk.id, question.id)
    writer.append("abc STOP", [TokenText(Origin.PLAIN, "abc"), TokenText(Origin.CORRECTION, " STOP")], [a_round(0)])
    message = writer.finish("done", {"text": "abc ", "seed": 7})
    assert (message.text, message.state, message.result) == ("abc ", "done", {"seed": 7})
    assert store.rounds(message.id) == [a_round(0)]
    assert store.tokens(message.id) == [TokenText(Origin.PLAIN, "abc"), TokenText(Origin.CORRECTION, " ")]
    with sqlite3.connect(store.path) as db:
        assert db.execute("SELECT count(*) FROM pieces").fetchone() == (0,)


def test_deleting_a_message_takes_what_hangs_on_it(store):
    talk = store.create()
    question = store.add_question(talk.id, None, "q")
    answer = store.begin_answer(talk.id, question.id).finish("done", {"text": "a"})
    store.delete_message(answer.id)
    assert store.conversation(talk.id).head == question.id
    store.delete_message(question.id)
    assert store.messages(talk.id) == []
    assert store.conversation(talk.id).head is None


def test_deleting_a_conversation_leaves_nothing(store):
    talk = store.create()
    store.add_question(talk.id, None, "q")
    store.delete(talk.id)
    with pytest.raises(StoreError):
        store.conversation(talk.id)
    with sqlite3.connect(store.path) as db:
        assert db.execute("SELECT count(*) FROM messages").fetchone() == (0,)


def test_search_ignores_case_beyond_ascii_and_takes_wildcards_literally(store):
    first, second = store.create(), store.create()
    store.add_question(first.id, None, "ÄPFEL und 100% [/] Birnen_")
    store.add_question(second.id, None, "nichts dergleichen")
    for needle in ("äpfel", "100%", "[/]", "birnen_"):
        assert [f.id for f in store.find(needle)] == [first.id], needle
    assert store.find("100_") == []
    assert "ÄPFEL" in store.find("äpfel")[0].snippet
    assert [f.id for f in store.find()] == [second.id, first.id]


def test_empty_conversations_are_not_listed(store):
    store.create()
    assert store.find() == []
    assert store.latest() is None


def test_prompt_history_moves_a_repeated_prompt_to_the_end(store):
    for text in ("a", "b", "a"):
        store.add_prompt(text)
    assert store.prompts() == ["b", "a"]


def test_an_older_file_is_migrated_and_keeps_its_contents(tmp_path):
    path = tmp_path / "old.sqlite3"
    db = sqlite3.connect(path)
    for statement in store_schema.MIGRATIONS[0]:
        db.execute(statement)
    db.execute("PRAGMA user_version = 1")
    db.execute("INSERT INTO conversations (title, created, updated) VALUES ('old', 1, 1)")
    db.execute("INSERT INTO messages (conversation, role, text, state, created) VALUES (1, 'user', 'hello', 'done', 1)")
    db.commit()
    db.close()
    store = Store(path)
    assert store.find()[0].title == "old"
    store.add_prompt("works")
    assert store.prompts() == ["works"]


def test_two_programs_that_open_an_old_file_together_migrate_it_once(tmp_path):
    path = tmp_path / "c.sqlite3"
    stores: list[Store] = []
    threads = [threading.Thread(target=lambda: stores.append(Store(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 8


def test_a_program_that_writes_to_a_file_without_a_log_is_waited_for(tmp_path):
    # Switching to a log needs the file alone, and SQLite's own waiting does not cover that switch.
    path = tmp_path / "c.sqlite3"
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    ends = threading.Timer(0.3, writer.execute, ("COMMIT",))
    ends.start()
    store = Store(path)
    ends.join()
    assert store._all("PRAGMA journal_mode") == [("wal",)]
    writer.close()


def test_a_newer_file_is_refused_untouched(tmp_path):
    path = tmp_path / "new.sqlite3"
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UsageError, match="newer spec-local"):
        Store(path)


def test_a_damaged_file_is_a_sentence_that_names_it(tmp_path):
    path = tmp_path / "bad.sqlite3"
    path.write_bytes(b"this is no database, and long enough to be looked at" * 50)
    with pytest.raises(StoreError, match=r"bad\.sqlite3"):
        Store(path)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path / "file" / "c.sqlite3")


_WRITER = """
import sys, time
from spec_local.session.store import Store
from spec_local.session.provenance import Origin, TokenText
store = Store(sys.argv[1])
talk = store.create()
question = store.add_question(talk.id, None, sys.argv[2])
writer = store.begin_answer(talk.id, question.id)
for n in range(int(sys.argv[3])):
    writer.append(f"{n} ", [TokenText(Origin.PLAIN, f"{n} ")], [])
    print(n, flush=True)
writer.finish("done")
"""


def test_a_killed_program_keeps_every_flush(tmp_path):
    path = tmp_path / "c.sqlite3"
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), "q", "1000000"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(40):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL if os.name == "posix" else signal.SIGTERM)
    last = max([last, *(int(line) for line in process.stdout.read().split())])
    process.wait()
    store = Store(path)
    answer = store.messages(store.latest() or 0)[1]
    assert answer.state == "writing"
    numbers = [int(n) for n in answer.text.split()]
    assert numbers == list(range(len(numbers))), "no hole, no half piece"
    assert len(numbers) >= last + 1, "what was flushed is there"
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_two_programs_at_once_lose_nothing(tmp_path):
    path = tmp_path / "c.sqlite3"
    Store(path).close()
    running = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(path), f"q{i}", "150"], stdout=subprocess.DEVNULL)
        for i in range(3)
    ]
    reader = Store(path)
    while any(process.poll() is None for process in running):
        reader.find("149")
        time.sleep(0.02)
    assert [process.returncode for process in running] == [0, 0, 0]
    expected = "".join(f"{n} " for n in range(150))
    answers = [m for f in reader.find() for m in reader.messages(f.id) if m.role == "assistant"]
    assert [(m.text, m.state) for m in answers] == [(expected, "done")] * 3


def test_rounds_of_a_later_program_are_read_without_their_new_fields():
    from spec_local.session.store_records import rounds_from_json

    names = ["source", "width", "drafted", "tested", "accepted", "emitted", "draft_s", "verify_s", "host_s", "reason"]
    text = json.dumps({"fields": [*names, "new"], "rows": [["text", 3, 2, 2, 1, 2, 0.1, 0.2, 0.3, "why", 9]]})
    assert rounds_from_json(text) == [Round("text", 3, 2, 2, 1, 2, 0.1, 0.2, 0.3, "why")]


def test_memory_store_works_alike():
    store = Store(IN_MEMORY)
    talk = store.create()
    store.add_question(talk.id, None, "q")
    assert store.latest() == talk.id
