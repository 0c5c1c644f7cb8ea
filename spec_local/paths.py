"""The folders spec-local keeps things in: the platform's own places, or one folder of the user's choice.

Two environment variables move them:

* `SPEC_LOCAL_HOME`: one folder for everything (`cache/`, `data/`, `config/`, `state/` below it);
* `SPEC_LOCAL_MODELS`: only the model files, for instance on a larger disk.

Nothing here creates a folder; whoever writes into one does.
"""

from __future__ import annotations

from pathlib import Path

from spec_local import environment

_APP = "spec-local"


def _moved(variable: str) -> Path | None:
    """The absolute folder an environment variable names; None where it is unset or empty."""
    value = environment.variable(variable)
    return None if value is None else Path(value).expanduser().absolute()


def _folder(kind: str) -> Path:
    home = _moved("SPEC_LOCAL_HOME")
    if home is not None:
        return home / kind
    import platformdirs  # kept out of `import spec_local`

    folder: Path = getattr(platformdirs, f"user_{kind}_path")(_APP, appauthor=False)
    return folder


def cache_folder() -> Path:
    """What can be made again: measurements per machine, built wheels, and the model files."""
    return _folder("cache")


def data_folder() -> Path:
    """What the user made and cannot get back: conversations."""
    return _folder("data")


def config_folder() -> Path:
    """Settings and the user's own catalogue."""
    return _folder("config")


def config_file() -> Path:
    """The settings file, TOML."""
    return config_folder() / "config.toml"


def state_folder() -> Path:
    """Logs and input history."""
    return _folder("state")


def models_folder() -> Path:
    """Downloaded and requantised model files, one folder per model name."""
    return _moved("SPEC_LOCAL_MODELS") or cache_folder() / "models"
