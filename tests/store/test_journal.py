"""A store on a file system that shares no memory: no write-ahead log, but everything is saved."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from spec_local.session.store import Store


@pytest.fixture(params=["dotfile", "ioerr", "protocol"])
def without_shared_memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite as it is on a network's home: by a VFS without shared memory, and by the errors that others give."""
    connect: Any = sqlite3.connect
    if request.param == "dotfile":

        def plain(path: Any, **options: Any) -> sqlite3.Connection:
            made: sqlite3.Connection = connect(f"file:{path}?vfs=unix-dotfile", uri=True, **options)
            return made

        monkeypatch.setattr(sqlite3, "connect", plain)
        return
    code = {"ioerr": sqlite3.SQLITE_IOERR_SHMOPEN, "protocol": sqlite3.SQLITE_PROTOCOL}[request.param]

    class Refusing(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            if sql == "PRAGMA journal_mode = WAL":
                error = sqlite3.OperationalError("locking protocol")
                error.sqlite_errorcode = code
                raise error
            return super().execute(sql, *rest)

    monkeypatch.setattr(sqlite3, "connect", lambda path, **options: connect(path, factory=Refusing, **options))


def test_everything_is_saved_and_it_is_said_once(tmp_path: Path, without_shared_memory: None) -> None:
    path = tmp_path / "conversations.sqlite3"
    store = Store(path)
    assert "no shared memory" in store.notice
    kept = store.create("be brief").id
    store.close()
    again = Store(path)
    assert again.notice == "", "said once"
    assert again.conversation(kept).system == "be brief"
    assert again._db.execute("PRAGMA journal_mode").fetchone()[0] in ("delete", "truncate")
    other = Store(path)
    other.create()
    again.create()
    other.close()
    again.close()


def test_elsewhere_the_log_is_kept_and_nothing_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path / "c.sqlite3")
    assert (store.notice, store._db.execute("PRAGMA journal_mode").fetchone()[0]) == ("", "wal")
    store.close()
