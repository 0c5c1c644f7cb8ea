"""The process of a worker: llama.cpp's RPC server on some devices, with a meter on each.

    python -m spec_local.llama.worker '{"endpoint": "127.0.0.1:50052", "devices": ["CPU"], ...}'

Lines on standard output: those of llama.cpp, and `held DEVICE BYTES` whenever that changed. It ends when its standard
input does, so that it never outlives the command that watches over it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass

from spec_local.errors import SpecLocalError, UsageError
from spec_local.llama.devices import Device, list_devices, serve
from spec_local.llama.library import set_verbose
from spec_local.llama.metered import Meter

CLOSED, HELD = "Client connection closed", "held"
"""What lines begin with that mean something."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What to serve."""

    endpoint: str
    devices: tuple[str, ...] = ()
    """By name; empty: every GPU, and where there is none the CPU."""
    memory: int | None = None
    """Bytes that may be held on each device; None: all there are."""
    threads: int = 0
    """For the CPU; 0: the physical cores."""
    cache_folder: str | None = None
    """Where large tensors are kept for the next time."""

    def to_json(self) -> str:
        """For the command line of the process."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> WorkerOptions:
        """The inverse of `to_json`."""
        values = json.loads(text)
        return WorkerOptions(**{**values, "devices": tuple(values["devices"])})


def served_devices(names: tuple[str, ...]) -> list[Device]:
    """The devices a worker serves; see `WorkerOptions.devices`.

    Raises:
        UsageError: There is no such device.
    """
    here = list_devices()
    if not names:
        gpus = [device for device in here if device.offloads]
        return gpus or [device for device in here if device.kind == "cpu"][:1]
    known = {device.name.lower(): device for device in here}
    for name in names:
        if name.lower() not in known:
            raise UsageError(
                f"There is no device called {name!r}.", f"Devices here: {', '.join(d.name for d in here)}."
            )
    return [known[name.lower()] for name in names]


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())  # past Python's buffers: C writes to the same place


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def main(options: WorkerOptions) -> int:
    """Serve until the end of standard input; returns where that cannot be begun."""
    from spec_local.llama.processor import physical_cores

    set_verbose(True)  # what llama.cpp complains of is the only trace of a client it does not understand
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which then ends this process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    devices = served_devices(options.devices)
    meters = [
        Meter(device, options.memory, lambda held, name=device.name: _say(f"{HELD} {name} {held}"))  # type: ignore[misc]
        for device in devices
    ]
    serve(options.endpoint, devices, options.threads or physical_cores(), options.cache_folder)
    del meters
    return 1


if __name__ == "__main__":
    try:
        raise SystemExit(main(WorkerOptions.from_json(sys.argv[1])))
    except SpecLocalError as failure:
        print(failure, file=sys.stderr)
        raise SystemExit(1) from None
