"""A loaded GGUF file: weights and vocabulary."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from spec_local.errors import Aborted, BackendError, ModelError, UsageError
from spec_local.llama.devices import pick_devices
from spec_local.llama.library import first_error, forget_log, llama
from spec_local.llama.vocabulary import Vocabulary

ALL_LAYERS = -1
_MAPPED, _READ = -1, 0
"""llama_load_mode: AUTO maps wherever the devices in use can; NONE reads into buffers."""
_SPLIT_MODES = {"none": 0, "layer": 1, "row": 2}


@dataclass(frozen=True, slots=True)
class Offload:
    """Where the weights go."""

    gpu_layers: int = ALL_LAYERS
    """Layers to put on the offload devices; -1 is all of them, 0 none."""
    devices: tuple[str, ...] = ()
    """Device names in order of use; empty lets llama.cpp take every offload device; ("none",) forces the CPU."""
    main_gpu: int = 0
    """Index of the device that holds everything when `split_mode` is none."""
    split_mode: str = "layer"
    """none, layer or row."""
    tensor_split: tuple[float, ...] = ()
    """Share of the model for each device, in their order; empty splits by free memory."""
    repack: bool = True
    """Let the CPU backend repack weights for its fastest kernels (changes no meaning)."""
    mapped: bool = True
    """Map the file instead of reading it: quicker and shared, but of repacked weights both copies stay."""


class Model:
    """Weights in memory. Contexts are made from it and must be closed before it.

    Args:
        path: A GGUF file; of a split file, its first part.
        offload: Where the weights go.
        progress: Called with 0.0 … 1.0 while loading; return False to cancel.
        vocabulary_only: Leave the weights where they are: only vocabulary and chat template are here then.

    Raises:
        ModelError: The file cannot be loaded.
        Aborted: `progress` said so.
        UsageError: `offload` names a device that is not there.
    """

    def __init__(
        self,
        path: Path,
        offload: Offload = Offload(),
        progress: Callable[[float], bool] | None = None,
        vocabulary_only: bool = False,
    ) -> None:
        self._lib = llama()
        self.path = path
        self._handle: Any = None
        params = self._lib.llama_model_default_params()
        keep = self._apply(params, offload)  # arrays the parameters point to, alive until the load ends
        params.vocab_only = vocabulary_only
        cancelled = False
        raised: list[BaseException] = []  # ctypes would print what a callback raises, Ctrl-C above all, and go on

        def on_progress(fraction: float, _data: Any) -> bool:
            nonlocal cancelled
            try:
                cancelled = progress is not None and not progress(fraction)
            except BaseException as error:
                raised.append(error)
            return not (cancelled or raised)

        params.progress_callback = callback = self._lib.llama_progress_callback(on_progress)
        forget_log()
        self._handle = self._lib.llama_model_load_from_file(str(path).encode("utf-8", "surrogateescape"), params)
        del keep, callback
        if raised:
            raise raised[0]
        if not self._handle:
            if cancelled:
                raise Aborted(f"Loading {path} was cancelled.")
            said = first_error()
            whole = "split buffers" in said  # no matter of the file: these devices cannot share a matrix
            raise ModelError(
                f"llama.cpp cannot load {path}{said}.",
                "Use --split-mode layer." if whole else "Check the file with `spec-local models show`.",
            )
        self.vocabulary = Vocabulary(self._lib.llama_model_get_vocab(self._handle))
        if not self._lib.llama_model_has_decoder(self._handle):
            self.close()
            raise ModelError(f"{path} is not a text generation model.", "Choose a causal language model.")

    def _apply(self, params: Any, offload: Offload) -> list[Any]:
        if offload.split_mode not in _SPLIT_MODES:
            raise UsageError(f"Split mode {offload.split_mode!r} does not exist.", "Use none, layer or row.")
        params.split_mode = _SPLIT_MODES[offload.split_mode]
        params.n_gpu_layers = offload.gpu_layers
        params.main_gpu = offload.main_gpu
        params.use_extra_bufts = offload.repack
        params.load_mode = _MAPPED if offload.mapped else _READ
        keep: list[Any] = []
        if offload.devices:
            handles = [device.handle for device in pick_devices(offload.devices)]
            devices = (ctypes.c_void_p * (len(handles) + 1))(*handles, None)
            params.devices = ctypes.cast(devices, ctypes.c_void_p)
            keep.append(devices)
        if offload.tensor_split:
            room = self._lib.llama_max_devices()
            if len(offload.tensor_split) > room:
                raise UsageError(f"A tensor split of {len(offload.tensor_split)} shares is more than {room} devices.")
            split = (ctypes.c_float * room)(*offload.tensor_split)
            params.tensor_split = split
            keep.append(split)
        return keep

    @property
    def handle(self) -> Any:
        """llama.cpp's own pointer, for contexts."""
        if self._handle is None:
            raise BackendError(f"The model {self.path} is closed.")
        return self._handle

    @property
    def n_swa(self) -> int:
        """Sliding attention window in tokens; 0 where every layer sees everything."""
        return int(self._lib.llama_model_n_swa(self.handle))

    @property
    def recurrent(self) -> bool:
        """Whether some layers keep a running state instead of a trimmable cache."""
        return bool(self._lib.llama_model_is_recurrent(self.handle) or self._lib.llama_model_is_hybrid(self.handle))

    @property
    def description(self) -> str:
        """llama.cpp's short description, such as `qwen2 1.5B Q4_K - Medium`."""
        buffer = ctypes.create_string_buffer(256)
        self._lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def architecture(self) -> str:
        """The file's `general.architecture`, such as `qwen2`."""
        buffer = ctypes.create_string_buffer(128)
        self._lib.llama_model_meta_val_str(self.handle, b"general.architecture", buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def chat_template(self) -> str | None:
        """The Jinja source in the file, or None."""
        source = self._lib.llama_model_chat_template(self.handle, None)
        return source.decode("utf-8", "replace") if source else None

    def close(self) -> None:
        """Free the weights; harmless when done twice."""
        if self._handle is not None:
            self.vocabulary.close()
            self._lib.llama_model_free(self._handle)
            self._handle = None

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
