"""Conversations on disk: one SQLite file, made to survive being killed and being used by two programs at once.

A conversation is a tree of messages; `head` marks the branch in view. Editing or regenerating adds a branch and never
overwrites one. An answer on its way is a message in state "writing" with its text in rows of its own, one per flush, so
what a killed program had flushed is simply there when the conversation is read again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spec_local.errors import SpecLocalError
from spec_local.paths import data_folder
from spec_local.session.attachments import Attachment
from spec_local.session.provenance import TokenText, decode, encode
from spec_local.session.store_records import (
    Found,
    State,
    StoredConversation,
    StoredMessage,
    pack,
    rounds_from_json,
    rounds_to_json,
    unpack,
)
from spec_local.session.store_schema import migrate
from spec_local.speculation.round import Round

IN_MEMORY = ":memory:"
_BUSY_S = 5.0
"""How long to wait for another program's write; each takes well under a millisecond."""
_NO_SHARED_MEMORY = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL}
"""How SQLite refuses a write-ahead log where the file system does not share memory."""
_PROMPTS_KEPT = 1000


class StoreError(SpecLocalError):
    """Conversations cannot be read or saved."""


def store_path() -> Path:
    """Where conversations are kept."""
    return data_folder() / "conversations.sqlite3"


class Store:
    """The conversations of one person. May be used from several threads.

    Args:
        path: The file (made where missing, with its folder), or `IN_MEMORY`.

    Raises:
        StoreError: It cannot be opened, or is no such store.
        UsageError: A newer program wrote it.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.notice = ""
        """What a person should know about how it is kept; empty where all is well."""
        self._lock = threading.RLock()
        with self._sentences("opened"):
            if path != IN_MEMORY:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                logged = path == IN_MEMORY or _keep_log(self._db)
                self._db.execute(f"PRAGMA synchronous = {'NORMAL' if logged else 'FULL'}")
                self._db.execute("PRAGMA foreign_keys = ON")
                if not logged and self._db.execute("PRAGMA user_version").fetchone()[0] == 0:  # said once, when made
                    self.notice = (
                        f"The file system of {path} has no shared memory: conversations are saved with a slower "
                        "journal, by one program at a time."
                    )
                migrate(self._db, str(path))
            except BaseException:
                self._db.close()
                raise
        self._db.create_function("holds", 2, lambda text, needle: needle in text.casefold(), deterministic=True)

    def close(self) -> None:
        """Close the file; harmless when done twice."""
        with self._lock:
            self._db.close()

    # -- conversations ---------------------------------------------------------------------------------------------

    def create(self, system: str = "", settings: dict[str, Any] | None = None) -> StoredConversation:
        """A new conversation without messages."""
        now = time.time()
        with self._write() as db:
            cursor = db.execute(
                "INSERT INTO conversations (system, settings, created, updated) VALUES (?, ?, ?, ?)",
                (system, json.dumps(settings or {}), now, now),
            )
            assert cursor.lastrowid is not None
            identity = cursor.lastrowid
        return self.conversation(identity)

    def conversation(self, identity: int) -> StoredConversation:
        """One conversation; `StoreError` where it does not exist (any more)."""
        row = self._one("SELECT id, title, system, settings, head FROM conversations WHERE id = ?", identity)
        if row is None:
            raise StoreError("This conversation does not exist any more.", "/new starts another one.")
        return StoredConversation(row[0], row[1], row[2], json.loads(row[3]), row[4])

    def change(self, identity: int, **values: Any) -> None:
        """Set title, system, settings or head of a conversation."""
        assert set(values) <= {"title", "system", "settings", "head"}
        if "settings" in values:
            values["settings"] = json.dumps(values["settings"])
        names = ", ".join(f"{name} = ?" for name in (*values, "updated"))
        with self._write() as db:
            db.execute(f"UPDATE conversations SET {names} WHERE id = ?", (*values.values(), time.time(), identity))

    def delete(self, identity: int) -> None:
        """Remove a conversation with all its messages."""
        with self._write() as db:
            db.execute("DELETE FROM conversations WHERE id = ?", (identity,))

    def find(self, text: str = "", limit: int = 200) -> list[Found]:
        """Conversations with messages, newest first; with `text`, those with it in title or messages, in any case."""
        needle = text.strip().casefold()
        counts = "(SELECT count(*) FROM messages m WHERE m.conversation = c.id)"
        rows = self._all(
            f"SELECT c.id, c.title, c.updated, {counts} FROM conversations c"
            " WHERE EXISTS (SELECT 1 FROM messages m WHERE m.conversation = c.id)"
            " ORDER BY c.updated DESC, c.id DESC"
        )
        if not needle:
            return [_found(row) for row in rows[:limit]]
        hits: dict[int, tuple[int, str]] = {}
        for conversation, message, body in self._all(
            "SELECT conversation, id, text FROM messages WHERE holds(text, ?) ORDER BY id", needle
        ):
            hits[conversation] = (message, body)  # the newest message of each that has it
        found = []
        for row in rows:
            message, body = hits.get(row[0], (None, ""))
            if message is not None or needle in row[1].casefold():
                found.append(_found(row, _around(body, needle), message))
        return found[:limit]

    def latest(self) -> int | None:
        """The conversation that was used last; None where there is none."""
        found = self.find(limit=1)
        return found[0].id if found else None

    # -- messages --------------------------------------------------------------------------------------------------

    def messages(self, conversation: int) -> list[StoredMessage]:
        """The whole tree, in order of writing."""
        rows = self._all(f"SELECT {_COLUMNS} FROM messages WHERE conversation = ? ORDER BY id", conversation)
        return [self._message(row) for row in rows]

    def message(self, identity: int) -> StoredMessage:
        """One message; `StoreError` where it does not exist (any more)."""
        row = self._one(f"SELECT {_COLUMNS} FROM messages WHERE id = ?", identity)
        if row is None:
            raise StoreError("This message does not exist any more.")
        return self._message(row)

    def add_question(
        self, conversation: int, parent: int | None, text: str, attachments: Sequence[Attachment] = ()
    ) -> StoredMessage:
        """Add a person's message and make it the head."""
        files = json.dumps([asdict(file) for file in attachments])
        return self.message(self._add(conversation, parent, "user", text, files, "done"))

    def begin_answer(self, conversation: int, parent: int) -> AnswerWriter:
        """Add an empty answer in state "writing" and make it the head."""
        return AnswerWriter(self, self._add(conversation, parent, "assistant", "", "[]", "writing"))

    def delete_message(self, identity: int) -> None:
        """Remove a message and everything behind it; the head falls back to its parent where it was among them."""
        with self._write() as db:
            row = db.execute("SELECT conversation, parent FROM messages WHERE id = ?", (identity,)).fetchone()
            if row is None:
                return
            db.execute("DELETE FROM messages WHERE id = ?", (identity,))
            db.execute("UPDATE conversations SET head = ? WHERE id = ? AND head IS NULL", (row[1], row[0]))

    def rounds(self, message: int) -> list[Round]:
        """The records behind an answer's figures."""
        row = self._one("SELECT rounds FROM messages WHERE id = ?", message)
        found = unpack(row[0]) if row else []
        for (rows,) in self._all("SELECT rounds FROM pieces WHERE message = ? ORDER BY number", message):
            found += rounds_from_json(rows)
        return found

    def tokens(self, message: int) -> list[TokenText]:
        """The tokens of an answer with their origins."""
        row = self._one("SELECT text, tokens FROM messages WHERE id = ?", message)
        text, encoded = row or ("", "")
        for piece, runs in self._all("SELECT text, tokens FROM pieces WHERE message = ? ORDER BY number", message):
            text += piece
            encoded += runs
        return decode(encoded, text) if encoded else []

    # -- prompt history --------------------------------------------------------------------------------------------

    def add_prompt(self, text: str) -> None:
        """Remember what was sent, newest last; one that is there already moves to the end."""
        with self._write() as db:
            db.execute("DELETE FROM prompts WHERE text = ?", (text,))
            db.execute("INSERT INTO prompts (text) VALUES (?)", (text,))
            db.execute("DELETE FROM prompts WHERE id <= (SELECT max(id) FROM prompts) - ?", (_PROMPTS_KEPT,))

    def prompts(self) -> list[str]:
        """What was sent before, oldest first."""
        return [text for (text,) in self._all("SELECT text FROM prompts ORDER BY id")]

    # -- the file --------------------------------------------------------------------------------------------------

    def _add(self, conversation: int, parent: int | None, role: str, text: str, files: str, state: State) -> int:
        now = time.time()
        with self._write() as db:
            cursor = db.execute(
                "INSERT INTO messages (conversation, parent, role, text, attachments, state, created)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (conversation, parent, role, text, files, state, now),
            )
            db.execute(
                "UPDATE conversations SET head = ?, updated = ? WHERE id = ?", (cursor.lastrowid, now, conversation)
            )
            assert cursor.lastrowid is not None
            return cursor.lastrowid

    def _message(self, row: tuple[Any, ...]) -> StoredMessage:
        identity, conversation, parent, role, text, files, state, error, created, result = row
        if state == "writing":
            rows = self._all("SELECT text FROM pieces WHERE message = ? ORDER BY number", identity)
            text = "".join(piece for (piece,) in rows)
        attachments = tuple(Attachment(**file) for file in json.loads(files))
        return StoredMessage(
            identity, conversation, parent, role, text, state, created, attachments, error, json.loads(result)
        )

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that takes the write lock at its start, so that it never fails half way for want of it."""
        with self._lock, self._sentences("written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _all(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._sentences("read"):
            return self._db.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: object) -> tuple[Any, ...] | None:
        rows = self._all(sql, *values)
        return rows[0] if rows else None

    @contextmanager
    def _sentences(self, what: str) -> Iterator[None]:
        """Turn SQLite's and the system's errors into a sentence that names the file."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise StoreError(
                f"The conversations in {self.path} cannot be {what}: {reason}.",
                "Check the disk and the folder's permissions, or set SPEC_LOCAL_HOME to keep them elsewhere.",
            ) from error


def _keep_log(db: sqlite3.Connection) -> bool:
    """Switch the file to a write-ahead log, which it then keeps; where that cannot be, to an ordinary journal.

    The switch needs the file alone, and SQLite does not wait for that as it waits for other locks: we do. The log needs
    memory that processes share through the file system, which a network's often has not.

    Returns:
        Whether it has the log.
    """
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            return bool(db.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal")
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF
            if code in _NO_SHARED_MEMORY:
                break
            if code != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # a file that has the log is read without shared memory in this way
    db.execute("PRAGMA journal_mode = DELETE")
    db.execute("PRAGMA locking_mode = NORMAL")
    db.execute("SELECT count(*) FROM sqlite_master")  # lets the exclusive lock go
    return False


_COLUMNS = "id, conversation, parent, role, text, attachments, state, error, created, result"


class AnswerWriter:
    """Writes one answer while it comes. Made by `Store.begin_answer`."""

    def __init__(self, store: Store, message: int) -> None:
        self._store = store
        self.message = message
        """Id of the message."""
        self._number = 0

    def append(self, text: str, tokens: Sequence[TokenText], rounds: Sequence[Round]) -> None:
        """Save what came since the last call."""
        with self._store._write() as db:
            db.execute(
                "INSERT INTO pieces (message, number, text, tokens, rounds) VALUES (?, ?, ?, ?, ?)",
                (self.message, self._number, text, encode(tokens), rounds_to_json(rounds)),
            )
        self._number += 1

    def finish(self, state: State, result: dict[str, Any] | None = None, error: str = "") -> StoredMessage:
        """Put the answer together and give it its last state.

        Args:
            state: "done", "stopped" or "failed".
            result: `Result.as_dict`, where there is one.
            error: What went wrong, for "failed".
        """
        store, key = self._store, self.message
        with store._lock:
            text = (result or {}).get("text")
            rows = store._all("SELECT text, tokens FROM pieces WHERE message = ? ORDER BY number", key)
            rounds = pack(store.rounds(key))
            whole = "".join(row[0] for row in rows) if text is None else text
            with store._write() as db:
                db.execute(
                    "UPDATE messages SET text = ?, tokens = ?, rounds = ?, state = ?, error = ?, result = ?"
                    " WHERE id = ?",
                    (whole, "".join(row[1] for row in rows), rounds, state, error, _result_json(result), key),
                )
                db.execute("DELETE FROM pieces WHERE message = ?", (key,))
            return store.message(key)


def _found(row: tuple[Any, ...], snippet: str = "", message: int | None = None) -> Found:
    identity, title, updated, messages = row
    return Found(identity, title, updated, messages, snippet, message)


def _result_json(result: dict[str, Any] | None) -> str:
    return json.dumps({name: value for name, value in (result or {}).items() if name != "text"})


def _around(text: str, needle: str, width: int = 36) -> str:
    """The line-free text around the first occurrence of `needle` (casefolded); empty where it does not occur."""
    at = text.casefold().find(needle)
    if at < 0:
        return ""
    start, end = max(0, at - width), at + len(needle) + width
    piece = " ".join(text[start:end].split())
    return f"{'…' if start else ''}{piece}{'…' if end < len(text) else ''}"
