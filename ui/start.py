"""Start the application on the store of conversations."""

from __future__ import annotations

from spec_local.errors import SpecLocalError
from spec_local.sampling.params import Sampling
from spec_local.session.options import EngineOptions
from spec_local.session.store import IN_MEMORY, Store, StoreError, store_path
from spec_local.ui.app import ChatApp


def start(options: EngineOptions, sampling: Sampling, *, system: str = "", go_on: bool = False) -> int:
    """Run the chat until it is left.

    Args:
        options: What to load.
        sampling: Sampling from the command line and the configuration.
        system: System message of new conversations.
        go_on: Open the conversation that was used last.

    Returns:
        0, or 128 + the number of the signal that ended it.
    """
    warning: SpecLocalError | None = None
    try:
        store = Store(store_path())
    except StoreError as error:
        store = Store(IN_MEMORY)
        warning = StoreError(f"{error.message} This conversation will not be saved.", error.hint)
    resume = store.latest() if go_on else None
    app = ChatApp(options, sampling, store, system=system, resume=resume, warning=warning)
    return app.run() or 0
