"""The tables of the conversation store and how an older file becomes a current one.

`PRAGMA user_version` counts the migrations a file has seen. Each is a list of statements that runs in one transaction
under a write lock, so two programs that open an old file together migrate it once. A migration that has been released
is never edited: a change is a new one at the end.
"""

from __future__ import annotations

import sqlite3

from spec_local.errors import UsageError

_CONVERSATIONS = (
    """CREATE TABLE conversations (
        id       INTEGER PRIMARY KEY,
        title    TEXT NOT NULL DEFAULT '',
        system   TEXT NOT NULL DEFAULT '',
        settings TEXT NOT NULL DEFAULT '{}',  -- sampling values the person set, JSON
        head     INTEGER REFERENCES messages(id) ON DELETE SET NULL,  -- last message of the branch in view
        created  REAL NOT NULL,               -- seconds since the epoch, here and below
        updated  REAL NOT NULL
    )""",
    """CREATE TABLE messages (
        id           INTEGER PRIMARY KEY,
        conversation INTEGER NOT NULL REFERENCES conversations(id) ON DELETE CASCADE,
        parent       INTEGER REFERENCES messages(id) ON DELETE CASCADE,  -- NULL: a first message
        role         TEXT NOT NULL CHECK (role IN ('user', 'assistant')),
        text         TEXT NOT NULL DEFAULT '',
        attachments  TEXT NOT NULL DEFAULT '[]',
        state        TEXT NOT NULL CHECK (state IN ('done', 'stopped', 'failed', 'writing')),
        error        TEXT NOT NULL DEFAULT '',
        created      REAL NOT NULL,
        result       TEXT NOT NULL DEFAULT '{}',  -- `Result.as_dict` without the text
        rounds       BLOB,                        -- records of the rounds, compressed JSON
        tokens       TEXT NOT NULL DEFAULT ''     -- provenance, see provenance.encode
    )""",
    "CREATE INDEX messages_by_parent ON messages (conversation, parent)",
    # What a running answer adds, a row per flush: a killed program loses no more than the last one. When the answer
    # ends, its message gets the whole and these rows go.
    """CREATE TABLE pieces (
        message INTEGER NOT NULL REFERENCES messages(id) ON DELETE CASCADE,
        number  INTEGER NOT NULL,
        text    TEXT NOT NULL,
        tokens  TEXT NOT NULL,
        rounds  TEXT NOT NULL,
        PRIMARY KEY (message, number)
    ) WITHOUT ROWID""",
)

_PROMPTS = (
    """CREATE TABLE prompts (
        id   INTEGER PRIMARY KEY,
        text TEXT NOT NULL
    )""",
)

MIGRATIONS: tuple[tuple[str, ...], ...] = (_CONVERSATIONS, _PROMPTS)


def migrate(connection: sqlite3.Connection, where: str) -> None:
    """Bring a file to the newest version.

    Raises:
        UsageError: A newer program wrote it.
        sqlite3.Error: It is no database, or cannot be written.
    """
    newest = len(MIGRATIONS)
    if _version(connection) == newest:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > newest:
            raise UsageError(
                f"{where} was written by a newer spec-local (version {version} of the store; this one knows {newest}).",
                "Update spec-local, or set SPEC_LOCAL_HOME to keep conversations elsewhere.",
            )
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {newest}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
