"""The order of the set-up, and the start of the program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bootstrapping import environment as environments, lock, machine, recipe, wheels
from bootstrapping.console import Console, report
from bootstrapping.environment import Environment, Stamp
from bootstrapping.failures import SetupError, from_os_error

CHECKOUT = Path(__file__).resolve().parents[2]
CANNOT_RUN_HERE = 4
INTERRUPTED = 130
REBUILD = "--rebuild"
ROOM_BYTES = 1_000_000_000
"""The virtual environment with everything in it, and some air."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is run once everything is there."""

    command: list[str]
    folder: Path | None
    """The folder it is run in; None: where the person is, so that relative paths mean what they say."""


def wanted_extras(words: Sequence[str]) -> tuple[str, ...]:
    """The extras that these words need: the chat always, the developer's tools for `test`."""
    return ("chat", "dev") if words[:1] == ["test"] else ("chat",)


def start_for(words: Sequence[str], environment: Environment, checkout: Path) -> Start:
    """`test` is pytest in the checkout; everything else goes to spec-local as it is."""
    if words[:1] == ["test"]:
        return Start([str(environment.python), "-m", "pytest", *words[1:]], checkout)
    return Start([str(environment.program), *words], None)


def pinned(checkout: Path, package: str = "llama-cpp-python") -> str:
    """The exact version that pyproject.toml asks for."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = next(line for line in project["dependencies"] if line.startswith(f"{package}=="))
    return str(wanted.removeprefix(f"{package}=="))


def set_up(
    checkout: Path,
    environment: Environment,
    digest: str,
    extras: Sequence[str],
    console: Console,
    rebuild: bool = False,
) -> None:
    """Bring the virtual environment to what the digest stands for; call it with the checkout's lock held.

    Args:
        checkout: The folder of the checkout.
        environment: Its virtual environment.
        digest: What the set-up depends on.
        extras: The extras that are wanted; those that are there stay.
        console: Where the steps are told.
        rebuild: Build llama.cpp anew and install it, whatever is kept and whatever is there.

    Raises:
        SetupError: A step failed; the next call goes on where this one stopped.
    """
    before = environment.stamp()
    if before and before.serves(digest, extras) and not rebuild:
        return  # somebody else did it while we waited for the lock
    environment.root.mkdir(parents=True, exist_ok=True)
    environment.log.unlink(missing_ok=True)
    wheels.check_room(environment.root, ROOM_BYTES, "Installing spec-local")
    if not rebuild:  # what works goes on working until there is something to take its place
        environment.unstamp()
    environment.make(console.run)
    found = machine.look(os.environ, recipe.NO_AMX)
    if hint := recipe.missed(found):
        console.say(hint)
    wanted = recipe.choose(pinned(checkout), environment.tag(), found, os.environ)
    cache = wheels.cache_folder(os.environ)
    wheel = wheels.obtain(wanted, environment.python, cache, console, os.environ, anew=rebuild)
    environment.unstamp()
    if rebuild or not before or before.wheel != wanted.key:
        environments.install_wheel(environment, wheel, console.run)
    everything = sorted({*extras, *(before.extras if before else ())})
    environments.install_project(environment, checkout, everything, console.run)
    environments.check_loads(environment, wheel, console.run)
    if note := environments.build_kernels(environment, console.run):
        console.say(note)
    environment.write(Stamp(digest, tuple(everything), wanted.key))


def ensure(
    checkout: Path, environment: Environment, extras: Sequence[str], console: Console, rebuild: bool = False
) -> None:
    """Set up unless the stamp says that all is there; with `rebuild` in any case, llama.cpp built anew.

    Raises:
        SetupError: The set-up failed.
    """
    digest = environments.digest(checkout, machine.cheap_signs(os.environ))
    stamp = environment.stamp()
    if stamp and stamp.serves(digest, extras) and not rebuild:
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that children end with us
    with lock.held(environment.lock, lambda: console.say("Another set-up of this checkout runs; waiting for it.")):
        set_up(checkout, environment, digest, extras, console, rebuild)


def launch(start: Start) -> int:
    """Become the program; on Windows, which knows no exec, run it and pass its status on."""
    if start.folder:
        os.chdir(start.folder)
    # Who sets everything up with one command wants an answer, not a question about the model's download.
    os.environ["SPEC_LOCAL_PULL_UNASKED"] = "1"  # a setting of `pull`, wherever it comes from, counts more
    sys.stderr.flush()
    if sys.platform != "win32":
        os.execv(start.command[0], start.command)
    return subprocess.call(start.command)


def main(words: Sequence[str]) -> int:
    """Set up what is missing, then start what the words ask for.

    Returns:
        The exit status, where it comes back at all.
    """
    rebuild = words[:1] == [REBUILD]
    words = words[1:] if rebuild else words
    environment = Environment(CHECKOUT / ".venv")
    console = Console(environment.log)
    try:
        ensure(CHECKOUT, environment, wanted_extras(words), console, rebuild)
        if rebuild and not words:
            return 0  # it was asked for the build alone
        return launch(start_for(words, environment, CHECKOUT))
    except SetupError as error:
        report(error, console)
        return CANNOT_RUN_HERE
    except OSError as error:
        report(from_os_error(error), console)
        return CANNOT_RUN_HERE
    except KeyboardInterrupt:
        console.say("Stopped; the same command goes on from here.")
        return INTERRUPTED
