"""Start the application on the store of conversations."""

from __future__ import annotations

from collections.abc import Callable

from spec_local.session.store import IN_MEMORY, Store, StoreError, store_path
from spec_local.ui.app import ChatApp, Prepare


def start(prepare: Prepare, *, system: str = "", go_on: bool = False, take: Callable[[], None] = lambda: None) -> int:
    """Run the chat until it is left.

    Args:
        prepare: Checks what was asked for and says what to load; called once the screen is there.
        system: System message of new conversations.
        go_on: Open the conversation that was used last.
        take: Called when the application is about to take the screen over.

    Returns:
        0, or 128 + the number of the signal that ended it.

    Raises:
        SpecLocalError: What `prepare` raised.
    """
    warning: StoreError | None = None
    try:
        store = Store(store_path())
        if store.notice:
            warning = StoreError(store.notice, "SPEC_LOCAL_HOME keeps them elsewhere.")
    except StoreError as error:
        store = Store(IN_MEMORY)
        warning = StoreError(f"{error.message} This conversation will not be saved.", error.hint)
    app = ChatApp(prepare, store, system=system, resume=store.latest() if go_on else None, warning=warning)
    take()
    code = app.run() or 0
    if app.failure is not None:
        raise app.failure
    return code
