"""A signal has a name, or at least a number."""

from __future__ import annotations

import signal

from spec_local.llama.signals import signal_name


def test_a_signal_is_named():
    assert signal_name(-signal.SIGTERM) == "SIGTERM"


def test_a_real_time_signal_has_only_its_number():
    assert signal_name(-50) == "signal 50"
