"""`spec-local` with a scripted engine instead of models, for tests that kill, pipe and interrupt a real process.

python scripted_cli.py DELAY_S generate --input … --output …
"""

from __future__ import annotations

import sys

from batch_engines import ScriptedEngine


def main() -> int:
    import spec_local.batch.slots as slots
    import spec_local.cli.loading as loading
    from spec_local.cli.main import main as command

    delay_s = float(sys.argv[1])
    vars(loading)["load_engine"] = lambda *_: ScriptedEngine(delay_s=delay_s)
    vars(slots)["affordable_slots"] = lambda *_: 4
    return command(sys.argv[2:])


if __name__ == "__main__":
    raise SystemExit(main())
