"""The program in tmux with a real small model: what a person sees."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_models import SMALL, model_path

pytestmark = [
    pytest.mark.models,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux"),
]

PATIENCE_S = 180.0


class Tmux:
    """A window of a tmux server of its own."""

    def __init__(self, name: str, command: str, environment: dict[str, str], size: tuple[int, int]) -> None:
        self._name = name
        self._environment = environment
        self._run("new-session", "-d", "-s", "chat", "-x", str(size[0]), "-y", str(size[1]), f"{command}; cat")

    def _run(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._name, *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True).stdout

    @property
    def screen(self) -> str:
        """What is shown."""
        return self._run("capture-pane", "-t", "chat", "-p")

    def type(self, text: str) -> None:
        """Type a text and Enter."""
        self._run("send-keys", "-t", "chat", "-l", text)
        self._run("send-keys", "-t", "chat", "Enter")

    def press(self, *keys: str) -> None:
        """Press keys."""
        self._run("send-keys", "-t", "chat", *keys)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window."""
        self._run("resize-window", "-t", "chat", "-x", str(columns), "-y", str(rows))

    def until(self, condition: Callable[[str], object], what: str) -> str:
        """Wait until the screen is as wanted."""
        end = time.monotonic() + PATIENCE_S
        while not condition(screen := self.screen):
            assert time.monotonic() < end, f"waited for {what} in vain:\n{screen}"
            time.sleep(0.1)
        return screen

    def end(self) -> None:
        """End it."""
        subprocess.run(["tmux", "-L", self._name, "kill-server"], env=self._environment, capture_output=True)


@pytest.fixture
def tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tmux]:
    # The conversations of this test are its own; model files, and what a pass costs here, are everybody's.
    monkeypatch.delenv("SPEC_LOCAL_HOME", raising=False)
    program = shlex.join([sys.executable, "-m", "spec_local.cli.main", "chat", "-m", str(model_path(SMALL))])
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    window = Tmux(
        f"spec-local-{os.getpid()}", f"{program} --threads 1 --seed 7 --max-tokens 120", environment, (120, 40)
    )
    yield window
    window.end()


def test_a_conversation_on_a_small_model(tmux: Tmux) -> None:
    tmux.until(lambda s: "Ask something" in s, "the first picture")
    tmux.until(lambda s: "+ text" in s, "the model")
    tmux.type("Write the numbers from one to ten, then write them again.")
    tmux.until(lambda s: "tokens per pass" in s and "Esc stops" in s, "an answer on its way")
    done = tmux.until(lambda s: "Enter sends" in s and "tok/s" in s, "the end of the answer")
    assert "plain, estimated" in done
    assert "Traceback" not in done

    tmux.type("Tell a long story about a river.")
    tmux.until(lambda s: "Esc stops" in s, "the second answer")
    time.sleep(1.5)
    tmux.press("Escape")
    tmux.until(lambda s: "stopped here" in s or "back in the input" in s, "the mark of the stop")

    for columns, rows in ((40, 10), (10, 3), (80, 24), (120, 40)):
        tmux.resize(columns, rows)
        time.sleep(0.5)
    tmux.until(lambda s: "Ask something" in s or "Tell a long story" in s, "the screen after its sizes")

    tmux.press("C-u")
    tmux.press("F5")
    tmux.until(lambda s: "Speculation was" in s or "Both are" in s or "Plain decoding was" in s, "both speeds")
    tmux.press("C-q")
    tmux.until(lambda s: "Ask something" not in s, "the end")
