"""`models show`: what a model is, what it needs here, and which drafts on this machine fit it."""

from __future__ import annotations

from typing import Any

from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.models.advice import faster_draft
from spec_local.cli.models.output import labelled, print_json
from spec_local.cli.terminal import say
from spec_local.errors import ModelError, SpecLocalError
from spec_local.models_manifest import (
    Header,
    ModelEntry,
    NotPulledError,
    Pair,
    PossibleDraft,
    ResolvedModel,
    load_catalogue,
    possible_drafts,
    read_header,
    recommended_sampling,
    resolve_model,
    show_bytes,
)
from spec_local.session.memory import MemoryPlan, plan
from spec_local.session.options import EngineOptions
from spec_local.words import counted


def run_show(arguments: Any) -> int:
    """Print the facts of one model; of one that is not here, what the catalogue knows."""
    try:
        found = resolve_model(arguments.name)
    except NotPulledError as error:
        return _show_absent(arguments, error)
    header = read_header(found.path)
    if arguments.template:
        if header.chat_template is None:
            raise ModelError(f"{found.path} has no chat template.", "ChatML is used instead.")
        say(header.chat_template)
        return ExitCode.OK
    drafts = possible_drafts(header)
    pairs = _pairs(found.entry)
    memory = plan(EngineOptions(), header, None)
    advice = faster_draft(header, found.name, found.entry) if any(pair.draft == _name(found) for pair in pairs) else ""
    if arguments.json:
        print_json(_as_dict(found, header, drafts, pairs, memory, advice))
        return ExitCode.OK
    say(found.name)
    lines = _lines(found, header, drafts, pairs, memory, advice)
    lines += list(scalars(header).items()) if arguments.metadata else []
    for label, text in lines:
        print("  " + labelled(label, str(text)).replace("\n", "\n  "))
    return ExitCode.OK


def scalars(header: Header) -> dict[str, Any]:
    """The file's metadata without its long arrays: of those only the length."""
    return {
        key: value if isinstance(value, int | float | str | bool) else f"array of {value.count}"
        for key, value in header.metadata.items()
    }


def end_tokens(header: Header) -> dict[int, str]:
    """Ids that end an answer, with their texts, quoted."""
    return {id: header.tokenizer.show(id) for id in sorted(header.tokenizer.end_ids())}


def _lines(
    found: ResolvedModel,
    header: Header,
    drafts: list[PossibleDraft],
    pairs: list[Pair],
    memory: MemoryPlan,
    advice: str,
) -> list[tuple[str, str]]:
    entry, tokenizer, layers = found.entry, header.tokenizer, header.layers
    files = f"{len(header.files)} files, " if len(header.files) > 1 else ""
    lines = [
        ("file", f"{found.path}\n{files}{show_bytes(header.file_bytes)}, in the folder of {found.origin}"),
        ("model", f"{header.name or 'no name'}, {parameters(header.parameters)} parameters, {header.quantisation}"),
        ("architecture", f"{header.architecture}, {counted(layers.count, 'layer')}{_kind(header)}"),
        ("context", _trained_for(header.context_length)),
    ]
    adds = " and ".join(name for name, on in (("BOS", tokenizer.add_bos), ("EOS", tokenizer.add_eos)) if on)
    kind = f"{tokenizer.model}{f' ({tokenizer.pre})' if tokenizer.pre else ''}"
    lines.append(("vocabulary", f"{tokenizer.n_vocab} tokens, {kind}, adds {adds or 'neither BOS nor EOS'}"))
    lines.append(("ends with", ", ".join(f"{id} {text}" for id, text in end_tokens(header).items()) or "nothing"))
    lines.append(("template", _template(header)))
    recommended = recommended_sampling(header, entry)
    said = ", ".join(f"{name.replace('_', '-')} {value} ({origin})" for name, (value, origin) in recommended.items())
    lines.append(("sampling", said or "nothing recommended"))
    lines.append(("memory", memory.sentence() + ("" if memory.fits() else "\nThat does not fit.")))
    if entry is not None:
        lines.append(("licence", entry.licence))
    for pair in pairs:
        other = f"draft {pair.draft}" if pair.target == _name(found) else f"drafts for {pair.target}"
        lines.append(("pair", f"{pair.name}: {other}{f'. {pair.expect}' if pair.expect else ''}"))
    if drafts:
        said = "\n".join(
            " ".join(
                filter(
                    None,
                    (
                        f"{draft.file.name} ({show_bytes(draft.file.bytes)}, {draft.file.origin})",
                        draft.report.other_vocabulary,
                        *draft.report.notes,
                    ),
                )
            )
            for draft in drafts
        )
        lines.append(("drafts here", said))
    else:
        lines.append(("drafts here", "no file on this machine fits as a draft; -d text needs none"))
    lines += [("note", note) for note in (*(entry.notes if entry else ()), *filter(None, [advice]))]
    return lines


def _as_dict(
    found: ResolvedModel,
    header: Header,
    drafts: list[PossibleDraft],
    pairs: list[Pair],
    memory: MemoryPlan,
    advice: str,
) -> dict[str, Any]:
    tokenizer, layers = header.tokenizer, header.layers
    return {
        "name": found.name,
        "present": True,
        "path": str(found.path),
        "origin": found.origin,
        "files": [str(path) for path in header.files],
        "bytes": header.file_bytes,
        "title": header.name,
        "architecture": header.architecture,
        "quantisation": header.quantisation,
        "parameters": header.parameters,
        "layers": layers.count,
        "recurrent": header.is_recurrent,
        "hybrid": header.is_hybrid,
        "sliding_window": layers.sliding_window,
        "context_length": header.context_length,
        "vocabulary": {
            "tokens": tokenizer.n_vocab,
            "model": tokenizer.model,
            "pre": tokenizer.pre,
            "bos": tokenizer.bos,
            "eos": tokenizer.eos,
            "adds_bos": tokenizer.add_bos,
            "adds_eos": tokenizer.add_eos,
            "ends": [{"id": id, "text": text} for id, text in end_tokens(header).items()],
        },
        "chat_template": header.chat_template,
        "named_templates": [*header.named_templates],
        "sampling": {
            name: {"value": value, "origin": origin}
            for name, (value, origin) in recommended_sampling(header, found.entry).items()
        },
        "memory": memory.as_dict() | {"fits": memory.fits()},
        "pairs": [{"name": pair.name, "target": pair.target, "draft": pair.draft} for pair in pairs],
        "possible_drafts": [
            {
                "name": d.file.name,
                "path": str(d.file.path),
                "bytes": d.file.bytes,
                "shared": None if d.report.shared is None else d.report.shared.as_dict(),
                "notes": [*d.report.notes],
            }
            for d in drafts
        ],
        "licence": found.entry.licence if found.entry else None,
        "notes": [*(found.entry.notes if found.entry else ())],
        "advice": advice or None,
        "metadata": scalars(header),
    }


def _show_absent(arguments: Any, error: NotPulledError) -> int:
    """What the catalogue knows of a model that is not on this machine."""
    if arguments.template:
        raise error
    entry, variant = load_catalogue().find(arguments.name)
    size = variant.shown_bytes
    sizes = {v.quantisation: v.shown_bytes for v in entry.variants}
    if arguments.json:
        facts = entry.model_dump(include={"name", "title", "parameters", "licence", "context_length", "notes"})
        print_json({**facts, "present": False, "quantisation": variant.quantisation, "bytes": size, "sizes": sizes})
        return ExitCode.OK
    print(entry.name)
    listed = ", ".join(f"{name} ({show_bytes(count)})" if count else name for name, count in sizes.items())
    lines = [
        ("model", entry.title + (f", {parameters(entry.parameters)} parameters" if entry.parameters else "")),
        ("context", _trained_for(entry.context_length)),
        ("listed in", listed),
        ("licence", entry.licence),
        *(("pair", f"{pair.name}: {pair.target} with {pair.draft}") for pair in _pairs(entry)),
        *(("note", note) for note in entry.notes),
        ("here", f"no; {error.hint}"),
    ]
    for label, text in lines:
        print("  " + labelled(label, text))
    return ExitCode.OK


def _pairs(entry: ModelEntry | None) -> list[Pair]:
    return [] if entry is None else [p for p in load_catalogue().pairs if entry.name in (p.target, p.draft)]


def _name(found: ResolvedModel) -> str:
    return found.entry.name if found.entry is not None else found.name


def _trained_for(tokens: int | None) -> str:
    return f"trained for {counted(tokens, 'token')}" if tokens else "not stated"


def _kind(header: Header) -> str:
    """How its layers remember, as far as it matters for cutting the cache back."""
    layers = header.layers
    if header.is_recurrent:
        return f", {sum(layers.recurrent)} of them recurrent: its state is saved before each draft, and gone back to"
    if layers.sliding_window:
        return f", {sum(layers.sliding)} of them with a window of {layers.sliding_window} tokens"
    return ", all of them with full attention"


def _template(header: Header) -> str:
    if header.chat_template is None:
        return "none; ChatML is used (--chat-template FILE supplies another)"
    from spec_local.session.template import ChatTemplate

    try:
        ChatTemplate(header.chat_template)
    except SpecLocalError as error:
        return f"broken: {error}"
    named = f", and named {', '.join(header.named_templates)}" if header.named_templates else ""
    return f"{counted(len(header.chat_template), 'character')}{named} (--template prints it)"


def parameters(count: int) -> str:
    """`1543714304` → `1.54 billion`."""
    return f"{count / 1e9:.3g} billion" if count >= 1e9 else f"{count / 1e6:.3g} million"
