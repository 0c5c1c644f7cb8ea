"""One request to stop and two."""

from __future__ import annotations

import os
import signal
import time

import pytest

from spec_local.cli.interrupt import Interrupt


def test_signals_that_come_together_are_one_request_and_a_later_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    told: list[float] = []
    with Interrupt(lambda: told.append(now)) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
        now = 10.1
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert caught.seen and told == [10.0]
        now = 10.5
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
