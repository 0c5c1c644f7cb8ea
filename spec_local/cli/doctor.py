"""`spec-local doctor`: what this machine and installation can do, and what is wrong with them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from spec_local import __version__, paths
from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.options import resolve
from spec_local.cli.terminal import is_terminal
from spec_local.errors import SpecLocalError
from spec_local.models_manifest import show_bytes
from spec_local.words import counted, harmless

EPILOG = """\
examples:
  spec-local doctor
  spec-local doctor --json > report.json
  spec-local doctor --rpc 192.168.7.2:50052
"""
_LOW_DISK = 5e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two flags."""
    parser.add_argument("--rpc", action="append", metavar="HOST:PORT", help="look at a worker too (repeatable)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: Any) -> int:
    """Look at everything; exit 0, or 4 where llama.cpp cannot compute at all."""
    report: dict[str, Any] = {"spec_local": __version__}
    problems: list[dict[str, str]] = []
    sections = dict(_SECTIONS)
    if endpoints := arguments.rpc or _configured_workers():
        sections["workers"] = lambda problems: _workers(endpoints, problems)
    for name, look in sections.items():
        try:
            report[name] = look(problems)
        except SpecLocalError as error:
            report[name] = {"error": error.message}
            problems.append({"problem": error.message, "hint": error.hint})
    report["problems"] = problems
    if arguments.json:
        json.dump(report, sys.stdout, ensure_ascii=False)
        print()
    else:
        _print(report)
    decodes = report.get("decode")
    computes = isinstance(decodes, list) and any(entry["works"] for entry in decodes)
    return ExitCode.OK if computes else ExitCode.BACKEND


def _python(_problems: list[dict[str, str]]) -> dict[str, str]:
    wanted = ("llama-cpp-python", "numpy", "pydantic", "jinja2", "huggingface_hub", "textual")
    versions = {}
    for package in wanted:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    here = {"version": platform.python_version(), "executable": sys.executable, "system": platform.platform()}
    return here | versions


def _llama(_problems: list[dict[str, str]]) -> dict[str, Any]:
    from spec_local.llama.library import build_info, llama

    library = llama()
    return {
        **build_info(),
        "rpc": bool(library.llama_supports_rpc()),
    }


def _devices(_problems: list[dict[str, str]]) -> list[dict[str, Any]]:
    from spec_local.llama.devices import list_devices

    return [
        {
            "name": device.name,
            "description": device.description,
            "kind": device.kind,
            "offloads": device.offloads,
            "free_bytes": device.free_bytes,
            "total_bytes": device.total_bytes,
        }
        for device in list_devices()
    ]


def _decode(problems: list[dict[str, str]]) -> list[dict[str, Any]]:
    """A decode in a child process on the CPU and on each offload device."""
    from spec_local.llama.devices import list_devices
    from spec_local.llama.library import REBUILD
    from spec_local.llama.probe import probe

    entries = []
    for name in ("none", *(device.name for device in list_devices() if device.offloads)):
        answer = probe((name,), fresh=True)
        entries.append(
            {"device": "CPU" if name == "none" else name, "works": answer.works, "repack": answer.repack}
            | ({"problem": answer.problem} if answer.problem else {})
        )
        if answer.problem:
            hint = REBUILD if name == "none" else f"Leave {name} out with --device, or build anew. {REBUILD}"
            if answer.works:
                hint = "spec-local goes round it by not repacking weights."
            problems.append({"problem": f"On {entries[-1]['device']}, {answer.problem}", "hint": hint})
    return entries


def _kernels(problems: list[dict[str, str]]) -> dict[str, Any]:
    """Our own kernels: whether they are built and work here, and what they would bring where they are not."""
    from spec_local.llama.kernels import build
    from spec_local.llama.kernels.library import NO_INSTRUCTIONS, register
    from spec_local.llama.kernels.rehearsal import rehearse

    if problem := build.architecture_problem():
        return {"works": False, "reason": problem}
    path = build.library_path()
    if not path.exists() and not build.compiler():
        hint = (
            "They read several tokens at the price of one, which speculation lives on. Install a C++ compiler (g++), "
            "and the next start builds them in seconds."
        )
        problems.append({"problem": f"spec-local's own kernels are off: {build.NO_COMPILER}.", "hint": hint})
        return {"works": False, "reason": f"they are not built, and {build.NO_COMPILER}"}
    try:
        if not path.exists():
            build.build()
        reason = rehearse(path, fresh=True)
        instructions = "" if reason else register().instructions
    except SpecLocalError as error:
        reason, instructions = error.message, ""
    if reason and reason != NO_INSTRUCTIONS:
        hint = f"llama.cpp's own compute. To build them anew, delete {path.parent}."
        problems.append({"problem": f"spec-local's own kernels are off: {reason}.", "hint": hint})
    return {"works": not reason, "path": str(path)} | ({"reason": reason} if reason else {"instructions": instructions})


def _configured_workers() -> Sequence[str]:
    """The workers that the settings name; none where those cannot be read, which their own section tells."""
    try:
        settings = resolve({})
    except SpecLocalError:
        return ()
    return tuple(settings["rpc"].value) if "rpc" in settings else ()


def _workers(endpoints: Sequence[str], problems: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Every worker with its devices, and a decode on each."""
    from spec_local.llama.probe import probe_worker
    from spec_local.llama.rpc import ask_workers

    entries = []
    for worker in ask_workers(endpoints):
        devices = []
        for device in worker.devices:
            problem = probe_worker(endpoints, device.name)
            if problem:
                problems.append({"problem": f"On {device.name} of {worker.endpoint}: {problem}", "hint": ""})
            devices.append(
                {
                    "name": device.name,
                    "free_bytes": device.free_bytes,
                    "total_bytes": device.total_bytes,
                    "works": not problem,
                }
            )
        entries.append({"endpoint": worker.endpoint, "round_trip_ms": 1e3 * worker.round_trip_s, "devices": devices})
    return entries


def _memory(_problems: list[dict[str, str]]) -> dict[str, Any]:
    import psutil

    from spec_local.llama.processor import cpu_quota, physical_cores

    memory = psutil.virtual_memory()
    return {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "physical_cores": physical_cores(),
        "logical_cores": os.cpu_count() or 0,
        "cpu_quota": cpu_quota(),
    }


def _folders(problems: list[dict[str, str]]) -> dict[str, Any]:
    """The program's folders, with what they hold and the room that is left."""
    found: dict[str, Any] = {}
    folders = {"models": paths.models_folder(), "cache": paths.cache_folder(), "config": paths.config_folder()}
    folders |= {"data": paths.data_folder(), "state": paths.state_folder()}
    for name, folder in folders.items():
        there = folder
        while not there.exists():
            there = there.parent
        free = shutil.disk_usage(there).free
        found[name] = {"path": str(folder), "bytes": _size(folder), "free_bytes": free}
        if not os.access(there, os.W_OK):
            problems.append(
                {"problem": f"{there} cannot be written.", "hint": "Set SPEC_LOCAL_HOME to another folder."}
            )
        if name == "models" and free < _LOW_DISK:
            problems.append({"problem": f"Only {show_bytes(free)} are free for models in {folder}.", "hint": ""})
    return found


def _settings(_problems: list[dict[str, str]]) -> dict[str, Any]:
    from spec_local.cli.loading import engine_options, sampling

    found = resolve({})
    engine_options(found)  # each value by itself may be read, and yet be out of range
    sampling(found)
    return {
        "file": str(paths.config_file()),
        "exists": paths.config_file().exists(),
        "set": {name: {"value": setting.value, "origin": setting.origin} for name, setting in found.items()},
    }


def _terminal(_problems: list[dict[str, str]]) -> dict[str, Any]:
    size = shutil.get_terminal_size()
    return {
        "is_terminal": is_terminal(sys.stdout),
        "columns": size.columns,
        "lines": size.lines,
        "term": os.environ.get("TERM", ""),
        "colours": "true colour" if os.environ.get("COLORTERM") in ("truecolor", "24bit") else "256 or fewer",
        "encoding": sys.stdout.encoding or "",
    }


_SECTIONS: dict[str, Callable[[list[dict[str, str]]], Any]] = {
    "python": _python,
    "llama": _llama,
    "devices": _devices,
    "decode": _decode,
    "kernels": _kernels,
    "memory": _memory,
    "folders": _folders,
    "settings": _settings,
    "terminal": _terminal,
}


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.exists() else 0


def _free(device: dict[str, Any]) -> str:
    return f"{show_bytes(device['free_bytes'])} of {show_bytes(device['total_bytes'])} free"


def _print(report: dict[str, Any]) -> None:
    """The report for a person, problems last."""

    def line(label: str, text: str) -> None:
        print(f"{label:<10}{harmless(text)}")

    python, llama, memory = report["python"], report["llama"], report["memory"]
    devices = report["devices"] if isinstance(report["devices"], list) else []
    line("spec-local", f" {report['spec_local']}, Python {python['version']} on {python['system']}")
    if "error" not in llama:
        line("llama.cpp", f"{llama['llama_cpp']} (llama-cpp-python {llama['llama_cpp_python']}); {llama['features']}")
        offload = [device["name"] for device in devices if device["offloads"]]
        line("", f"offload devices: {', '.join(offload) or 'none'}; RPC {'yes' if llama['rpc'] else 'no'}")
    for device in devices:
        line("device", f"{device['name']}: {device['description']}, {_free(device)}")
    for entry in report["decode"] if isinstance(report["decode"], list) else []:
        how = "decodes" if entry["works"] else "FAILS"
        line("decode", f"{entry['device']}: {how}{'' if entry['repack'] else ' (weights not repacked)'}")
    kernels = report["kernels"]
    if "error" not in kernels:
        works = (
            f"spec-local's own work ({kernels['instructions']})" if kernels["works"] else f"off: {kernels['reason']}"
        )
        line("kernels", works)
    workers = report.get("workers", [])
    for worker in workers if isinstance(workers, list) else []:
        for device in worker["devices"]:
            trip, how = f"{worker['round_trip_ms']:.1f} ms away", "decodes" if device["works"] else "FAILS"
            line("worker", f"{device['name']}: {worker['endpoint']}, {_free(device)}, {trip}, {how}")
    line(
        "memory",
        f"{show_bytes(memory['available_bytes'])} of {show_bytes(memory['total_bytes'])} available, "
        f"{counted(memory['physical_cores'], 'core')}"
        + (f" (this container may use {memory['cpu_quota']:g})" if memory["cpu_quota"] is not None else ""),
    )
    for name, folder in report["folders"].items():
        line(name, f"{folder['path']} ({show_bytes(folder['bytes'])}, {show_bytes(folder['free_bytes'])} free)")
    settings = report["settings"]
    if "error" not in settings:
        line("settings", f"{settings['file']}{'' if settings['exists'] else ' (not there)'}")
        for name, setting in settings["set"].items():
            line("", f"{name} = {setting['value']}  from {setting['origin']}")
    terminal = report["terminal"]
    line("terminal", f"{terminal['columns']}×{terminal['lines']}, {terminal['colours']}, {terminal['encoding']}")
    print()
    for problem in report["problems"]:
        print(harmless(f"PROBLEM  {problem['problem']}"))
        if problem["hint"]:
            print(harmless(f"         {problem['hint']}"))
    if not report["problems"]:
        print("No problems found.")
