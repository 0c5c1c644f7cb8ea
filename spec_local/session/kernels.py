"""Whether our own kernels compute here, what they take, and if not, why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spec_local.errors import BackendError
from spec_local.llama.devices import is_cpu_alone, offload_devices
from spec_local.llama.kernels import build
from spec_local.llama.kernels.choice import choose
from spec_local.llama.kernels.library import FORMATS, NO_INSTRUCTIONS, WIDTHS, Taken, names, register
from spec_local.llama.kernels.rehearsal import rehearse
from spec_local.llama.kernels.trial import check
from spec_local.models_manifest import Header
from spec_local.session.options import EngineOptions


@dataclass(frozen=True, slots=True)
class Kernels:
    """What was decided."""

    instructions: str = ""
    """The instruction set in use; empty where they are off."""
    taken: Taken = ()
    """What they compute; empty where they are off."""
    off: str = ""
    """Why they are off, as a clause; empty where they are on."""
    odd: bool = False
    """Whether something is wrong that a person should know of."""

    @property
    def on(self) -> bool:
        """Whether they compute anything."""
        return bool(self.taken)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; widths as ranges of rows, such as "1 to 16"."""
        if not self.on:
            return {"on": False, "reason": self.off}
        widths = {kind: _ranges(bits) for kind, bits in names(self.taken).items()}
        return {"on": True, "instructions": self.instructions, "formats": widths}

    def sentence(self) -> str:
        """For a person, short enough for a panel's line where they are on."""
        return f"spec-local's, {self.instructions}" if self.on else f"llama.cpp's: {self.off}"


def find_kernels(
    options: EngineOptions,
    headers: Sequence[Header],
    repack: bool = True,
    building: Callable[[], None] = lambda: None,
) -> Kernels:
    """Decide for models with these headers; the first time on a machine builds, tries and measures.

    Args:
        options: With the devices of both models, where they are named.
        headers: The target's and, where there is one, the draft's.
        repack: Whether weights could be repacked instead; see `Probe`.
        building: Called before the library is compiled, which takes some seconds; may raise.
    """
    if options.kernels == "off":
        return Kernels(off="switched off (--kernels off)")
    if problem := build.architecture_problem():
        return Kernels(off=problem)
    if _offloaded(options, len(headers) > 1):
        return Kernels(off="all layers lie on other devices")
    shares = _shares(headers)
    if not shares:
        kinds = ", ".join(FORMATS)
        return Kernels(off=f"no weights are in a format that they know ({kinds})")
    try:
        path = build.library_path()
        if not path.exists():
            if not build.compiler():
                return Kernels(off=f"they are not built, and {build.NO_COMPILER}")
            building()
            build.build()
        if problem := rehearse(path):
            return Kernels(off=problem, odd=problem != NO_INSTRUCTIONS)
        instructions = register().instructions
        check(list(shares))
        taken, gain = choose(shares, repack)
    except BackendError as error:
        return Kernels(off=error.message, odd=True)
    if gain < 1 or not taken:
        return Kernels(off="llama.cpp's own kernels are faster on this processor")
    return Kernels(instructions, taken)


def _offloaded(options: EngineOptions, draft: bool) -> bool:
    """Whether every layer of every model goes to another device."""
    roles = [(options.device, options.gpu_layers), (options.draft_device, options.draft_gpu_layers)]
    return all(
        layers in ("all", -1) and not is_cpu_alone(devices) and (options.rpc or offload_devices(devices))
        for devices, layers in roles[: 1 + draft]
    )


def _shares(headers: Sequence[Header]) -> dict[str, float]:
    """Part of the matrices by format, of those there are kernels for; looked-up embeddings count as matrices."""
    found: dict[str, float] = {}
    for header in headers:
        for tensor in header.tensors:
            if tensor.type in FORMATS and len(tensor.shape) > 1:
                found[tensor.type] = found.get(tensor.type, 0.0) + tensor.bytes
    whole = sum(found.values())
    return {kind: size / whole for kind, size in found.items()}


def _ranges(bits: int) -> str:
    """Set bits from 1 as "1 to 8, 12 and more"; the last width stands for all wider ones."""
    runs: list[str] = []
    width = 1
    while width <= WIDTHS:
        first = width
        while width <= WIDTHS and bits >> (width - 1) & 1:
            width += 1
        if width > first:
            last = width - 1
            wide = f"{first} and more" if last == WIDTHS else f"{first} to {last}"
            runs.append(str(first) if first == last else wide)
        width += 1
    return ", ".join(runs)
