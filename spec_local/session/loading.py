"""From names to loaded models: resolve, check the pair, load, and find out what the caches can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from spec_local import models_manifest as manifest
from spec_local.drafting.vocabulary_map import VocabularyMap
from spec_local.errors import Aborted, BackendError, ModelError, PairError, UsageError
from spec_local.llama.devices import is_cpu_alone, pick_devices
from spec_local.llama.hosted import Host
from spec_local.llama.kernels.library import Taken
from spec_local.llama.memory_probe import classify
from spec_local.llama.model import ALL_LAYERS, Model, Offload
from spec_local.llama.model_context import ContextOptions, ModelContext
from spec_local.llama.padded import LocalContext, open_context
from spec_local.llama.probe import require_backend
from spec_local.llama.rpc import Worker, ask_workers
from spec_local.models_manifest import Header, PairReport, ResolvedModel, show_bytes, split_files
from spec_local.session.kernels import Kernels, find_kernels
from spec_local.session.memory import (
    MemoryPlan,
    place,
    plan,
    room_for,
    snapshots,
    suggestions,
    with_sizes,
    without_draft,
)
from spec_local.session.options import EngineOptions, Layers
from spec_local.session.vocabularies import map_vocabularies

LoadProgress = Callable[[str, float], bool]
"""Called with (what is loading, fraction done); return False to cancel."""


def keep_on(progress: LoadProgress | None, what: str) -> Callable[[float], None]:
    """Between the passes of something that takes a while: tells `progress` the share done, and raises `Aborted` where
    it says so."""

    def go_on(done: float) -> None:
        if progress is not None and not progress(what, done):
            raise Aborted("Loading was stopped.")

    return go_on


@dataclass(slots=True)
class Loaded:
    """Models and contexts of one engine, and what was noticed on the way."""

    target: ModelContext
    target_name: str
    draft: ModelContext | None
    draft_name: str | None
    draft_off: str
    """Why there is no draft model; empty where there is one."""
    vocabulary_map: VocabularyMap | None
    """How the draft model reads and writes the target's tokens; None where there is none."""
    recommended: Mapping[str, tuple[object, str]]
    """Sampling values the model's maker recommends: name → (value, origin)."""
    unthinking: Mapping[str, tuple[object, str]]
    """Those that take their place where the model is told not to think."""
    load_s: float
    options: EngineOptions
    """What was asked for, with every `auto` decided."""
    memory: MemoryPlan
    """What the models were estimated to take."""
    notices: list[str] = field(default_factory=list)
    kernels: Kernels = field(default_factory=Kernels)
    """Whether our own kernels compute, and what."""
    workers: tuple[Worker, ...] = ()
    """Those that were asked for."""
    host: Host | None = None
    """The process that holds what lies on workers; None where nothing does."""

    @property
    def contexts(self) -> list[ModelContext]:
        """The target's and, where there is one, the draft's."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    def drop_draft(self, reason: str) -> None:
        """Go on without the draft model, and free it."""
        if self.draft is not None:
            _close(self.draft)
        self.draft, self.draft_name, self.draft_off, self.vocabulary_map = None, None, reason, None

    def close(self) -> None:
        """Free contexts, then weights."""
        for context in reversed(self.contexts):
            _close(context)
        if self.host is not None:
            self.host.close()


def load_models(options: EngineOptions, progress: LoadProgress | None = None) -> Loaded:
    """Load what `options` ask for.

    Raises:
        ModelError: A name or file cannot be used; `PairError` where the draft does not fit the target.
        Aborted: `progress` said so.
        BackendError: llama.cpp cannot run here, or memory does not suffice for the target; as a `WorkerError`, a
            worker cannot be used.
    """
    started = time.perf_counter()
    _require_flash(options)
    with ExitStack() as undo:
        target_file, draft_file, notices, off = _resolve(options)
        target_header = _sound(manifest.read_header(target_file.path))
        draft_header: Header | None = None
        pair: PairReport | None = None
        if draft_file is not None:
            try:
                draft_header = _sound(manifest.read_header(draft_file.path))
                pair = manifest.require_pair(target_header, draft_header)
                notices += filter(None, [pair.other_vocabulary])
                if draft_file.path.samefile(target_file.path):
                    notices.append("Target and draft are the same file, which cannot make anything faster.")
            except ModelError as error:
                draft_file, draft_header, off = None, None, _go_on_without(error, options, notices)
        workers = ask_workers(options.rpc)
        options = place(options, workers)
        repack = _backend_works(options, workers, notices)
        kernels = _kernels(
            options, [target_header, *([draft_header] if draft_header else [])], repack, notices, progress
        )
        repack = repack and not kernels.on  # repacked weights are llama.cpp's own affair
        room = room_for(options, workers, draft_header is not None)
        memory = plan(options, target_header, draft_header, room, repack)
        try:
            _require_room(memory, options, target_header, draft_header, notices)
        except ModelError as error:
            draft_file, draft_header, off = None, None, _go_on_without(error, options, notices)
            memory = plan(options, target_header, None, memory.room, repack)
        options = with_sizes(options, memory)
        notices += fragile_keys(options, target_header, draft_header)

        host = _host(options, workers, draft_file is not None, notices)
        if host is not None:
            undo.callback(host.close)
        offload = replace(_target_offload(options), repack=repack, mapped=memory.models[0].mapped)
        target_host = host if _remote(options.device, workers) else None
        sizes = _target_context(options, target_header, kernels.taken)
        target = _open(target_file.path, offload, sizes, "target", progress, target_host)
        undo.callback(target.model.close)
        undo.callback(target.close)
        draft: ModelContext | None = None
        if draft_file is not None:
            try:
                offload = replace(_draft_offload(options), repack=repack, mapped=memory.models[1].mapped)
                draft_host = host if _remote(options.draft_device, workers) else None
                sizes = _draft_context(options, kernels.taken)
                draft = _open(draft_file.path, offload, sizes, "draft", progress, draft_host)
            except (ModelError, BackendError) as error:
                if target_host is not None and target_host.lost:
                    raise
                message = f"The draft model {draft_file.path} could not be used: {error.message}"
                off = _go_on_without(ModelError(message, error.hint), options, notices)
        if draft is not None and draft.n_ctx < target.n_ctx:
            notices.append(
                f"The draft model's context ends at {draft.n_ctx} tokens (--draft-n-ctx): it drafts up to there, and "
                "behind it the text alone does."
            )
        undo.pop_all()
    return Loaded(
        target=target,
        target_name=target_file.name,
        draft=draft,
        draft_name=draft_file.name if draft_file is not None and draft is not None else None,
        draft_off=off,
        vocabulary_map=map_vocabularies(pair, target, draft, target_header) if pair and draft else None,
        recommended=manifest.recommended_sampling(target_header, target_file.entry),
        unthinking=manifest.unthinking_sampling(target_file.entry),
        load_s=time.perf_counter() - started,
        options=options,
        memory=memory if draft is not None else without_draft(memory),
        notices=notices,
        kernels=kernels,
        workers=workers,
        host=host,
    )


_FRAGILE = frozenset({"qwen2", "qwen2moe"})
"""Architectures whose keys have such outliers that four bits lose the text: Qwen2 and 2.5."""


def _require_flash(options: EngineOptions) -> None:
    """A quantised value cache is read by flash attention only.

    Raises:
        UsageError: It is switched off.
    """
    for name in ("cache_type_v", "draft_cache_type_v"):
        if getattr(options, name) not in ("f32", "f16", "bf16") and options.flash_attn == "off":
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} {getattr(options, name)} needs flash attention, which --flash-attn off switches off.",
                f"Leave --flash-attn at auto, or {flag} at f16.",
            )


def fragile_keys(options: EngineOptions, target: Header, draft: Header | None) -> list[str]:
    """A word about key caches of so few bits that a model is known to break with them."""
    found = []
    for header, name in ((target, "cache_type_k"), (draft, "draft_cache_type_k")):
        kind = getattr(options, name)
        if header is not None and header.architecture in _FRAGILE and kind in ("q4_0", "q4_1"):
            flag = f"--{name.replace('_', '-')}"
            found.append(f"Models like {header.path.name} are known to break with {flag} {kind}; q8_0 keys are safe.")
    return found


def _resolve(options: EngineOptions) -> tuple[ResolvedModel, ResolvedModel | None, list[str], str]:
    """Target, draft, sentences about their choice, and why there is no draft; where it is allowed, without the one that
    was asked for."""
    try:
        target, draft, notices = manifest.resolve_pair(options.target, options.wanted_draft, options.pair)
        return target, draft, notices, notices[-1] if draft is None and notices else ""
    except ModelError as error:
        if not options.allow_plain:
            raise
        target, _, notices = manifest.resolve_pair(options.target, "none", options.pair)
        return target, None, notices, _go_on_without(error, options, notices)


def _sound(header: Header) -> Header:
    """Refuse with a sentence what llama.cpp would end this process for.

    Raises:
        ModelError: The vocabulary has a token twice.
    """
    if (twice := header.tokenizer.repeated()) is not None:
        text = header.tokenizer.show(twice)
        raise ModelError(f"{header.path} has the token {text} twice; it is damaged.", "Download it again.")
    return header


def _require_room(
    memory: MemoryPlan,
    options: EngineOptions,
    target: Header,
    draft: Header | None,
    notices: list[str],
) -> None:
    """Refuse what cannot fit, and warn of what will be slow.

    Raises:
        BackendError: The target does not fit.
        ModelError: It does, but not together with the draft.
    """
    trained = target.context_length
    if trained and memory.n_ctx > trained:
        notices.append(f"The context of {memory.n_ctx} tokens is longer than the {trained} the model was trained for.")
    if memory.fits():
        return
    hint = suggestions(options, target, draft, memory.room)
    short = f"memory does not suffice: {memory.sentence()}"
    if memory.room.address_space is not None:
        short += f", {show_bytes(memory.room.address_space)} of address space left (ulimit -v)"
    if memory.hopeless():
        if draft is not None and not plan(options, target, None, memory.room).hopeless():
            raise ModelError(f"The draft model {draft.path} cannot be loaded beside the target: {short}.", hint)
        raise BackendError(f"{target.path} cannot be loaded: {short}.", hint)
    notices.append(f"This may be slow or fail, since {short}. {hint}".strip())


def _backend_works(options: EngineOptions, workers: tuple[Worker, ...], notices: list[str]) -> bool:
    """Refuse with a sentence where llama.cpp would crash; returns whether weights may be repacked."""
    repack = True
    for devices in {options.device, options.draft_device}:
        # What a worker computes is watched over where it is loaded: there the process may die.
        here = devices if not workers else tuple(set(devices) - _remote(devices, workers)) or ("none",)
        pick_devices(here)  # a name that does not exist is the person's slip, not a broken backend
        answer = require_backend(here)
        if not answer.repack:
            repack = False
            notices.append(f"Weights are not repacked for the CPU (slower): {answer.problem}")
    return repack


def _kernels(
    options: EngineOptions, headers: list[Header], repack: bool, notices: list[str], progress: LoadProgress | None
) -> Kernels:
    """Our own kernels, where they work and are faster; what is wrong with them becomes a notice."""
    go_on = keep_on(progress, "building the kernels for this machine, once")
    found = find_kernels(options, headers, repack, lambda: go_on(0.0))
    if found.odd:
        notices.append(f"spec-local's own kernels are off, and llama.cpp's compute: {found.off}.")
    return found


def _remote(devices: tuple[str, ...], workers: tuple[Worker, ...]) -> set[str]:
    """Those of the named devices that belong to workers."""
    return set(devices) & {device.name for worker in workers for device in worker.devices}


def _host(options: EngineOptions, workers: tuple[Worker, ...], draft: bool, notices: list[str]) -> Host | None:
    """The process for what lies on workers, where anything does."""
    if not workers:
        return None
    if not (_remote(options.device, workers) or (draft and _remote(options.draft_device, workers))):
        how = "the CPU is forced" if is_cpu_alone(options.device) else "--device names other devices"
        notices.append(f"Nothing lies on the workers: {how}.")
        return None
    return Host([worker.endpoint for worker in workers])


def _go_on_without(error: ModelError | BackendError, options: EngineOptions, notices: list[str]) -> str:
    if not options.allow_plain:
        if isinstance(error, PairError):
            error.hint = f"{error.hint} Or add --allow-plain to go on without a draft model.".strip()
        raise error
    notices.append(f"Continuing without a draft model. {error}")
    return error.message


def _open(
    path: Path,
    offload: Offload,
    options: ContextOptions,
    role: str,
    progress: LoadProgress | None,
    host: Host | None = None,
) -> ModelContext:
    """Load a model here, or in the process for workers."""
    what = f"loading {role} {path.name} ({show_bytes(sum(file.stat().st_size for file in split_files(path)))})"
    report = None if progress is None else lambda fraction: progress(what, fraction)
    if host is not None:
        return host.open(path, offload, options, report)
    model = Model(path, offload, report)
    context: LocalContext | None = None
    try:
        context = open_context(model, options)
        classify(context)
    except BaseException:
        if context is not None:
            context.close()
        model.close()
        raise
    return context


def _close(context: ModelContext) -> None:
    context.close()
    context.model.close()


def _layers(value: Layers) -> int:
    return value if isinstance(value, int) else ALL_LAYERS


def _target_offload(o: EngineOptions) -> Offload:
    return Offload(_layers(o.gpu_layers), o.device, o.main_gpu, o.split_mode, o.tensor_split)


def _draft_offload(o: EngineOptions) -> Offload:
    return Offload(_layers(o.draft_gpu_layers), o.draft_device, o.main_gpu)


def _target_context(o: EngineOptions, header: Header, kernels: Taken) -> ContextOptions:
    return ContextOptions(
        kernels=kernels,
        snapshots=snapshots(header, o),
        n_ctx=o.tokens,
        n_seq=o.parallel,
        n_batch=o.batch_size,
        max_rows=o.max_rows,
        pad_width=o.pad_width,
        threads=o.threads,
        flash_attention=o.flash_attn,
        cache_type_k=o.cache_type_k,
        cache_type_v=o.cache_type_v,
    )


def _draft_context(o: EngineOptions, kernels: Taken) -> ContextOptions:
    return ContextOptions(
        kernels=kernels,
        n_ctx=o.draft_n_ctx or o.tokens,
        n_seq=o.parallel,
        n_batch=o.batch_size,
        max_rows=o.draft_rows,
        threads=o.threads,
        flash_attention=o.flash_attn,
        cache_type_k=o.draft_cache_type_k,
        cache_type_v=o.draft_cache_type_v,
    )
