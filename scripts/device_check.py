"""Everything there is to know about spec-local on a machine with a GPU, in one JSON file.

    python3 scripts/device_check.py -o device.json

Builds for this machine (scripts/bootstrap.py finds CUDA or Metal), then runs, each as its own command: `doctor`
(devices, and a decode on each), `verify --quick` (is speculation exact on these kernels?), and `bench --quick` (V(n)
curves of target and draft, speed of every arm, the verdict), the last on the devices and on the processor alone. A step
that fails is recorded with its error, and the others are still run. `--program` uses an installed spec-local instead.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BOOTSTRAP = Path(__file__).resolve().with_name("bootstrap.py")
_BUILD_S, _STEP_S = 3600.0, 1800.0
_TAIL = 4000


def run_step(command: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """Run one command that prints one JSON object; what became of it, with that object where there is one."""
    started = time.monotonic()
    step: dict[str, Any] = {"command": shlex.join(command)}
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
        step |= {"exit": done.returncode, "stderr": done.stderr.decode("utf-8", "replace")[-_TAIL:]}
        output = done.stdout.decode("utf-8", "replace")
        try:
            step["report"] = json.loads(output)
        except ValueError:
            step["stdout"] = output[-_TAIL:]
    except (OSError, subprocess.TimeoutExpired) as error:
        step["error"] = str(error)
    return step | {"seconds": round(time.monotonic() - started, 1)}


def devices_of(step: dict[str, Any]) -> list[str]:
    """Names of the offload devices in a report of `doctor`."""
    found = step.get("report", {}).get("devices", [])
    return [device["name"] for device in found if device.get("offloads")]


def summary(steps: dict[str, Any]) -> list[str]:
    """A line for each step."""
    lines = []
    for name, step in steps.items():
        report = step.get("report", {})
        said = "no report" if not report else f"exit {step.get('exit')}"
        if name == "doctor" and report:
            said = f"devices: {', '.join(devices_of(step)) or 'none besides the CPU'}"
        elif name == "verify" and report:
            said = "passed" if step["exit"] == 0 else "FAILED"
        elif name.startswith("bench") and report:
            said = report["verdict"]["headline"]
        lines.append(f"{name:<12} {step['seconds']:>7.1f} s  {said}")
    return lines


def check(program: Sequence[str], model: Sequence[str], build: bool) -> dict[str, Any]:
    """All steps; see the module.

    Args:
        program: How spec-local is called.
        model: Flags that choose models, for every step that loads one.
        build: Whether the first call builds, which may take long.
    """
    steps = {"doctor": run_step([*program, "doctor", "--json"], _BUILD_S if build else _STEP_S)}
    offload = devices_of(steps["doctor"])
    commands: dict[str, list[str]] = {"verify": ["verify", "--quick"], "bench": ["bench", "--quick"]}
    if offload:
        commands["bench_cpu"] = ["bench", "--quick", "--device", "none", "--draft-device", "none"]
        commands["bench_draft_cpu"] = ["bench", "--quick", "--draft-device", "none"]
    if len(offload) > 1:
        commands["bench_one"] = ["bench", "--quick", "--device", offload[0], "--draft-device", offload[0]]
        commands["bench_apart"] = ["bench", "--quick", "--device", offload[0], "--draft-device", offload[1]]
    for name, command in commands.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        steps[name] = run_step([*program, *command, *model, "--json"], _STEP_S)
    return steps


def main() -> int:
    """Run, write the file, print a summary; exit 1 where a step gave no report or `verify` failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", default="device_check.json", metavar="PATH")
    parser.add_argument("--program", metavar="COMMAND", help="an installed spec-local, instead of building one")
    parser.add_argument("model", nargs="*", help="flags behind --, as in: -- -m TARGET -d DRAFT --gpu-layers auto")
    arguments = parser.parse_args()
    program = shlex.split(arguments.program) if arguments.program else [sys.executable, str(BOOTSTRAP)]
    model = arguments.model or ["--pull", "always"]
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    steps = check(program, model, build=not arguments.program)
    machine = {"system": platform.platform(), "processor": platform.processor(), "python": platform.python_version()}
    found = {"machine": machine, "started": started, "steps": steps}
    Path(arguments.output).write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    print("\n".join(summary(steps)))
    print(f"Everything is in {arguments.output}.")
    return 0 if all("report" in step for step in steps.values()) and steps["verify"]["exit"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
