"""`EngineOptions`: everything that is decided before a model is loaded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from spec_local.errors import UsageError

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
Layers = Annotated[int, Field(ge=-1)] | Literal["all", "auto"]
READ_ALONG = 8
"""Rows of logits a draft context can give in one pass: its own and those of text drafts it reads along."""


class EngineOptions(BaseModel):
    """Models, devices and speculation of one engine. Names are those of the command line's flags."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str | None = None
    """Catalogue name or path of the target; None: the pair's, else the default pair's."""
    draft: str = "auto"
    """Name or path; auto (the catalogue's draft), text (no draft model), or none. Where the length is auto, text drafts
    stand beside a draft model."""
    pair: str | None = None
    """Catalogue name of a target with its draft."""
    allow_plain: bool = False
    """Go on without a draft model, and say so, where the one asked for cannot be used."""
    chat_template: str | None = None
    """Path of a Jinja file used instead of the model's own template."""

    n_ctx: Annotated[int, Field(ge=2)] | Literal["auto"] = 4096
    """Tokens one sequence can hold; auto is what the model was trained for, as far as memory goes."""
    draft_n_ctx: int | None = Field(None, ge=2)
    """The same for the draft; None: as the target."""
    parallel: int = Field(1, ge=1, le=64)
    """Sequences decoded together."""
    batch_size: int = Field(512, ge=1)
    """Most tokens in one pass of prefill."""
    threads: int = Field(0, ge=0)
    """CPU threads; 0: physical cores."""
    gpu_layers: Layers = "all"
    """Layers of the target on the offload devices: a number, all (or -1), or auto (what fits)."""
    draft_gpu_layers: Layers = "all"
    device: tuple[str, ...] = ()
    """Offload devices of the target by name; empty: all workers' and all GPUs; ("none",) forces the CPU."""
    draft_device: tuple[str, ...] = ()
    """The same for the draft; empty: all GPUs, never a worker."""
    rpc: tuple[str, ...] = ()
    """HOST:PORT of workers that lend their devices, RPC0 and so on."""
    main_gpu: int = Field(0, ge=0)
    split_mode: Literal["none", "layer", "row"] = "layer"
    tensor_split: tuple[float, ...] = ()
    kernels: Literal["auto", "off"] = "off"
    """Our own kernels for passes over a few rows on the processor; auto: wherever they work and are faster. Off until
    they have been tried on more machines."""
    flash_attn: Literal["auto", "on", "off"] = "auto"
    mmap: Literal["auto", "on", "off"] = "auto"
    """Map model files or read them; auto maps where that takes less memory. A mapped file that is cut while it is in
    use ends the program, a file that was read does not matter any more."""
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    draft_cache_type_k: CacheType = "f16"
    draft_cache_type_v: CacheType = "f16"

    acceptance: Literal["coupled", "rejection", "block"] = "coupled"
    draft_length: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = "auto"
    """Tokens per draft; auto lets the controller choose, 0 is plain decoding."""
    draft_max: int = Field(16, ge=1, le=64)
    """Most tokens per draft."""
    pad_width: int = Field(0, ge=0, le=256)
    """Evaluate every target pass over so many tokens of one sequence; 0: over as many as needed, of all sequences."""

    @property
    def tokens(self) -> int:
        """`n_ctx`, once it is decided."""
        assert self.n_ctx != "auto"
        return self.n_ctx

    def without_workers(self) -> EngineOptions:
        """The same on this machine alone."""
        update: dict[str, object] = {"rpc": (), "tensor_split": ()}
        for name in ("device", "draft_device"):
            here = (device for device in getattr(self, name) if device not in self.rpc)
            update[name] = tuple(device for device in here if not device.upper().startswith("RPC"))
        return self.model_copy(update=update)

    @property
    def longest_draft(self) -> int:
        """Most tokens one draft may have under these options."""
        longest = self.draft_max if self.draft_length == "auto" else self.draft_length
        return max(0, min(longest, self.pad_width - 1)) if self.pad_width else longest

    @property
    def max_rows(self) -> int:
        """Most rows of one target pass."""
        return max(self.parallel * (self.longest_draft + 1), self.pad_width)

    @property
    def draft_rows(self) -> int:
        """Most rows of logits of one pass of the draft."""
        return max(self.parallel, READ_ALONG)

    @property
    def wanted_draft(self) -> str:
        """`draft`; none where no draft may have a token."""
        return self.draft if self.longest_draft > 0 else "none"


def engine_options(**values: object) -> EngineOptions:
    """`EngineOptions` with the first problem as a sentence.

    Raises:
        UsageError: A value does not fit.
    """
    try:
        return EngineOptions.model_validate(values)
    except ValidationError as error:
        raise UsageError(first_problem(error)) from error


def first_problem(error: ValidationError) -> str:
    """The first failure of a pydantic validation as one sentence."""
    problem = error.errors()[0]
    where = str(problem["loc"][0]) if problem["loc"] else "the value"
    return f"{where} cannot be {problem['input']!r}: {problem['msg'][:1].lower()}{problem['msg'][1:]}."
