"""Whether what is asked for fits: an estimate from the headers of the files, made before anything is loaded.

`plan` also decides what was left to it: `n_ctx="auto"` is the largest context that fits beside the weights,
`gpu_layers="auto"` as many layers as the offload devices have room for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from spec_local.llama.checkpoints import SAVED_STATES
from spec_local.llama.devices import is_cpu_alone, offload_devices
from spec_local.llama.rpc import Worker, ask_workers
from spec_local.models_manifest import (
    Header,
    compute_bytes,
    kv_bytes,
    recurrent_bytes,
    repacked_bytes,
    show_bytes,
    split_weights,
    vocabulary_bytes,
)
from spec_local.session.options import CacheType, EngineOptions, Layers
from spec_local.session.room import Room, free_room

MOST_CONTEXT = 32768
"""Tokens `auto` stops at: few conversations need more, and every token of it is reserved."""
_STEP = 256
"""llama.cpp keeps cells of a cache in such steps."""
_WORTH_READING = 0.1
"""Part of a file's weights that must be repacked for it to be read instead of mapped, which takes a little longer."""
_WITH_SNAPSHOTS = {
    "qwen35",
    "qwen35moe",
    "qwen4exp",
    "deepseek4",
    "nemotron_h",
    "nemotron_h_moe",
    "bailingmoe3",
    "lfm2",
}
_WITH_SNAPSHOTS |= {"lfm2moe", "kimi-k3", "glm5-next"}
"""Architectures whose older states llama.cpp keeps (`llm_arch_supports_rs_rollback`); others go back to saved ones."""
_SNAPSHOT_BYTES = 512 * 2**20
"""Most memory for those older states; a draft that is longer goes back to a saved state."""
_SHARE = 0.8
"""Part of the free memory `auto` takes; the rest belongs to whatever else runs here."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Bytes one model takes once it runs, wherever they lie."""

    role: str
    """target or draft."""
    weights: int
    mapped: bool
    """Whether the file is mapped. Where much of it is repacked for the processor it is read: one copy, not two."""
    repacked: int
    """A second copy of mapped weights; the system may drop the first one when it needs memory."""
    vocabulary: int
    cache: int
    """Keys and values, and recurrent states."""
    compute: int
    on_devices: int
    """Bytes of all these that lie on offload devices."""

    @property
    def total(self) -> int:
        """Everything, both copies of repacked weights included."""
        return self.weights + self.repacked + self.vocabulary + self.cache + self.compute

    @property
    def needed_host(self) -> int:
        """What has to be in RAM: everything that is not on a device, weights once."""
        return self.total - self.on_devices - self.repacked


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The sizes chosen, what they take, and what there is."""

    n_ctx: int
    gpu_layers: int
    """Layers of the target on devices; -1 for all."""
    draft_gpu_layers: int
    models: tuple[ModelMemory, ...]
    room: Room

    @property
    def total(self) -> int:
        """Bytes of everything."""
        return sum(model.total for model in self.models)

    @property
    def on_devices(self) -> int:
        """Those on offload devices."""
        return sum(model.on_devices for model in self.models)

    @property
    def needed_host(self) -> int:
        """Those that have to be in RAM."""
        return sum(model.needed_host for model in self.models)

    def fits(self, share: float = 1.0) -> bool:
        """Whether this share of the free memory is enough."""
        room = self.room
        if room.address_space is not None and self.total - self.on_devices > room.address_space:
            return False
        if room.shared:
            return self.needed_host + max(0, self.on_devices - share * room.remote) <= share * room.host
        return self.needed_host <= share * room.host and self.on_devices <= share * room.devices

    def hopeless(self) -> bool:
        """Whether loading must fail: what cannot be dropped and read again exceeds RAM and swap together."""
        room = self.room
        if room.address_space is not None and self.total - self.on_devices > room.address_space:
            return True
        weights = sum(model.weights for model in self.models if model.mapped)
        return self.needed_host - weights > room.host + room.swap

    def sentence(self) -> str:
        """One line for a person."""
        parts = {"weights": "weights", "repacked": "repacked copies", "cache": "cache", "compute": "scratch"}
        sums = {label: sum(getattr(model, name) for model in self.models) for name, label in parts.items()}
        sums["vocabulary"] = sum(model.vocabulary for model in self.models)
        what = ", ".join(f"{label} {show_bytes(size)}" for label, size in sums.items() if size)
        text = f"{show_bytes(self.total)} for a context of {self.n_ctx} tokens ({what})"
        if self.on_devices:
            text += f", {show_bytes(self.on_devices)} of it on devices with {show_bytes(self.room.devices)} free"
        return f"{text}; {show_bytes(self.room.host)} of RAM free"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        models = {model.role: {**asdict(model), "total": model.total} for model in self.models}
        for entry in models.values():
            del entry["role"]
        return {"n_ctx": self.n_ctx, "total": self.total, **models, "free": asdict(self.room)}


def plan(
    options: EngineOptions, target: Header, draft: Header | None, room: Room | None = None, repack: bool = True
) -> MemoryPlan:
    """What the models take under `options`, with every `auto` decided.

    Args:
        options: What was asked for.
        target: Its header.
        draft: The draft's, if there is one.
        room: Free memory; None to look, and to ask the workers.
        repack: Whether llama.cpp repacks weights for the processor.

    Raises:
        UsageError: A device does not exist.
        WorkerError: A worker cannot be used.
    """
    if room is None:
        workers = ask_workers(options.rpc)
        options = place(options, workers)
        room = room_for(options, workers, draft is not None)
    if "n_ctx" not in options.model_fields_set and options.tokens > _trained(target):
        options = options.model_copy(update={"n_ctx": _trained(target)})  # nobody asked for more
    layers = {
        "gpu_layers": _whole(options.gpu_layers, options.device, room),
        "draft_gpu_layers": _whole(options.draft_gpu_layers, options.draft_device, room),
    }
    least = options.model_copy(update={"n_ctx": min(4096, _trained(target))}) if options.n_ctx == "auto" else options

    def planned(wanted: EngineOptions) -> MemoryPlan:
        return _estimate(wanted, target, draft, room, layers, repack)

    for name, header in (("gpu_layers", target), ("draft_gpu_layers", draft)):
        if getattr(options, name) == "auto" and layers[name] and header is not None:
            # The draft's layers are decided after the target's, with what these leave.
            later = {"draft_gpu_layers": 0} if name == "gpu_layers" and options.draft_gpu_layers == "auto" else {}

            def fits(count: int, name: str = name, later: dict[str, int] = later) -> bool:
                trial = {**layers, **later, name: count}
                return _estimate(least, target, draft, room, trial, repack).fits(_SHARE)

            layers[name] = _largest(header.layers.count + 1, fits)
    if options.n_ctx != "auto":
        return planned(options)
    steps = max(1, min(MOST_CONTEXT, _trained(target)) // _STEP)
    best = _largest(steps, lambda n: planned(options.model_copy(update={"n_ctx": n * _STEP})).fits(_SHARE))
    return planned(options.model_copy(update={"n_ctx": min(max(1, best) * _STEP, _trained(target))}))


def place(options: EngineOptions, workers: Sequence[Worker]) -> EngineOptions:
    """The options with the devices of both models named, where there are workers.

    Raises:
        UsageError: A device does not exist.
    """
    if not workers:
        return options
    remote = [device for worker in workers for device in worker.devices]
    # The draft stays here: each of its tokens would cost a round trip, which is what it is to save.
    draft = offload_devices(options.draft_device, remote if options.draft_device else ())
    found = {"device": offload_devices(options.device, remote), "draft_device": draft}
    return options.model_copy(
        update={name: tuple(device.name for device in devices) or ("none",) for name, devices in found.items()}
    )


def room_for(options: EngineOptions, workers: Sequence[Worker], draft: bool) -> Room:
    """The memory that is free for models placed by these options; `UsageError` where a device does not exist."""
    remote = [device for worker in workers for device in worker.devices]
    used = offload_devices(options.device, remote) + (offload_devices(options.draft_device, remote) if draft else [])
    return free_room({device.name: device for device in used}.values())


def suggestions(options: EngineOptions, target: Header, draft: Header | None, room: Room) -> str:
    """What would fit instead, as a sentence; empty where nothing of that kind helps."""

    def fits(**changes: object) -> bool:
        return plan(options.model_copy(update=changes), target, draft, room).fits()

    found = []
    small: dict[str, CacheType] = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    small |= {"draft_cache_type_k": "q8_0", "draft_cache_type_v": "q8_0"} if draft is not None else {}
    now = plan(options, target, draft, room).n_ctx
    most = _largest(max(0, now // _STEP - 1), lambda n: fits(n_ctx=n * _STEP, draft_n_ctx=None))
    if most:
        found.append(f"--n-ctx {most * _STEP}")
    if options.cache_type_k == options.cache_type_v == "f16" and fits(**small):
        found.append("--cache-type-k q8_0 --cache-type-v q8_0")
    if room.devices and fits(gpu_layers="auto", draft_gpu_layers="auto"):
        found.append("--gpu-layers auto --draft-gpu-layers auto")
    if draft is not None and plan(options, target, None, room).fits():
        found.append("-d text (no draft model)")
    return f"It would fit with {', or with '.join(found)}." if found else ""


def snapshots(header: Header, o: EngineOptions) -> int:
    """Older states that a target with a running state should keep of its last pass: as many as may be rejected."""
    state = recurrent_bytes(header)
    if not state or o.parallel > 1 or header.architecture not in _WITH_SNAPSHOTS:
        return 0
    return min(max(o.longest_draft, o.pad_width - 1, 0), _SNAPSHOT_BYTES // state)


def _estimate(
    options: EngineOptions, target: Header, draft: Header | None, room: Room, layers: dict[str, int], repack: bool
) -> MemoryPlan:
    o, n_ctx = options, options.tokens
    types = o.cache_type_k, o.cache_type_v
    models = [_of("target", target, o, n_ctx, types, layers["gpu_layers"], o.max_rows, repack)]
    if draft is not None:
        types = o.draft_cache_type_k, o.draft_cache_type_v
        cells, count = o.draft_n_ctx or n_ctx, layers["draft_gpu_layers"]
        models.append(_of("draft", draft, o, cells, types, count, o.draft_rows, repack))
    return MemoryPlan(n_ctx, layers["gpu_layers"], layers["draft_gpu_layers"], tuple(models), room)


def _of(
    role: str,
    header: Header,
    o: EngineOptions,
    n_ctx: int,
    types: tuple[str, str],
    layers: int,
    rows: int,
    repack: bool,
) -> ModelMemory:
    """One model with so many offloaded `layers` (-1: all) and `rows` reserved rows of logits."""
    count = header.layers.count
    offloaded = count + 1 if layers < 0 else min(layers, count + 1)
    padded = o.pad_width if role == "target" else 0
    # One cache serves all sequences, so that its cells are those of one context times their number; but padded passes
    # are over one sequence, in a cache of its own.
    cells, caches = (n_ctx + padded, o.parallel) if padded else (n_ctx * o.parallel, 1)
    older = SAVED_STATES + (snapshots(header, o) if role == "target" else 0)
    cache = kv_bytes(header, cells, *types, n_seq=caches) + recurrent_bytes(header, o.parallel, older)
    batch = padded or max(o.batch_size, rows)
    compute = compute_bytes(header, cells, batch, o.flash_attn != "off", rows, padded or rows)
    on_devices = 0
    if offloaded:
        share = (offloaded - 1) / max(1, count)  # the first layer to be offloaded is that of the output
        on_devices = split_weights(header, offloaded).device + int(share * cache) + compute
    copies = repacked_bytes(header, offloaded) if repack else 0
    mapped = copies < _WORTH_READING * header.tensor_bytes if o.mmap == "auto" else o.mmap == "on"
    return ModelMemory(
        role=role,
        weights=header.tensor_bytes,
        mapped=mapped,
        repacked=copies if mapped else 0,
        vocabulary=vocabulary_bytes(header),
        cache=cache,
        compute=compute,
        on_devices=on_devices,
    )


def _whole(layers: Layers, names: tuple[str, ...], room: Room) -> int:
    """A number of layers, where it is decided without looking at memory; 0 where there are no devices."""
    if not room.devices or is_cpu_alone(names):
        return 0
    return layers if isinstance(layers, int) else -1


def _trained(header: Header) -> int:
    return header.context_length or 4096


def _largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest n in 1 … most that fits, supposing that every smaller one does too; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def with_sizes(options: EngineOptions, found: MemoryPlan) -> EngineOptions:
    """The options with every `auto` replaced by what was planned."""
    update: dict[str, object] = {"n_ctx": found.n_ctx}
    for name in ("gpu_layers", "draft_gpu_layers"):
        if getattr(options, name) == "auto" and found.room.devices:
            update[name] = getattr(found, name)
    return options.model_copy(update=update)


def without_draft(found: MemoryPlan) -> MemoryPlan:
    """The same plan for the target alone."""
    return replace(found, models=found.models[:1])
