"""Two set-ups at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from bootstrapping import lock

SCRIPTS = str(Path(lock.__file__).parents[1])


def test_the_second_waits_for_the_first_and_says_so_once(tmp_path: Path):
    path = tmp_path / "deep" / "lock"
    told: list[float] = []
    order: list[str] = []

    def second():
        with lock.held(path, lambda: told.append(time.monotonic()), poll_s=0.01):
            order.append("second")

    with lock.held(path, lambda: None):
        thread = threading.Thread(target=second)
        thread.start()
        while not told:
            time.sleep(0.005)
        time.sleep(0.05)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]
    assert len(told) == 1


def test_the_lock_goes_with_its_holder_however_it_ends(tmp_path: Path):
    path = tmp_path / "lock"
    code = (
        f"import sys, time; sys.path.insert(0, {SCRIPTS!r})\n"
        "from bootstrapping import lock; from pathlib import Path\n"
        f"with lock.held(Path({str(path)!r}), lambda: None):\n    print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        waited: list[bool] = []

        def waiting() -> None:
            waited.append(True)
            holder.kill()

        with lock.held(path, waiting, poll_s=0.01):
            assert waited == [True]


def test_a_lock_is_free_again_after_an_error(tmp_path: Path):
    path = tmp_path / "lock"
    try:
        with lock.held(path, lambda: None):
            raise ValueError
    except ValueError:
        pass
    with lock.held(path, lambda: (_ for _ in ()).throw(AssertionError("still held"))):
        pass
