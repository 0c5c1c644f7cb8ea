"""A model on workers says what it says here; layers, memory and costs are where they were asked to be."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from running_worker import RunningWorker, wait_until
from slow_link import SlowLink
from tiny_mtp import WIDTH, write_mtp

import spec_local
from spec_local.cli.exit_codes import ExitCode
from spec_local.cli.main import main
from spec_local.errors import Aborted, CacheError, UsageError
from spec_local.language_model import Chunk
from spec_local.llama.hosted import FACTS, Host, HostedContext
from spec_local.llama.memory_probe import classify
from spec_local.llama.model import Model, Offload
from spec_local.llama.model_context import ContextOptions
from spec_local.llama.padded import LocalContext, open_context
from spec_local.llama.rpc import ask_workers
from spec_local.models_manifest import kv_bytes, read_header, split_weights
from spec_local.sampling.params import Sampling
from spec_local.session.costs import cost_profile
from spec_local.session.memory import place, plan, room_for
from spec_local.session.options import EngineOptions
from spec_local.session.room import Room

pytestmark = pytest.mark.slow

SAMPLING = Sampling(seed=3, max_tokens=48, min_tokens=48, temperature=0.8)


def answer(target: Path, draft: Path | str, **options: object) -> tuple[int, ...]:
    chosen = EngineOptions.model_validate({"n_ctx": 256, "threads": 1, "pad_width": 8, **options})
    with spec_local.load(target, draft=draft, options=chosen) as engine:
        return engine.generate("hello the world", sampling=SAMPLING).token_ids


def held(worker: RunningWorker, seen: int) -> int:
    """Bytes the worker says it holds, after its first `seen` lines."""
    found: list[str] = []

    def said() -> bool:
        found[:] = [line for line in worker.lines[seen:] if line.startswith("holding")]
        return bool(found)

    wait_until(said)
    number, unit = re.fullmatch(r"holding ([\d.]+) (\w+) on CPU", found[-1]).groups()  # type: ignore[union-attr]
    return int(float(number) * {"B": 1, "kB": 1e3, "MB": 1e6}[unit])


def test_the_text_is_that_of_this_machine(workers: list[RunningWorker], target: Path, draft: Path) -> None:
    two = tuple(worker.endpoint for worker in workers)
    here = answer(target, draft)
    assert answer(target, "none") == here, "padded passes: with and without a draft"
    for options in (
        {"rpc": two},
        {"rpc": two, "tensor_split": (1, 3)},
        {"rpc": two, "gpu_layers": 2},
        {"rpc": two, "split_mode": "none", "main_gpu": 1},
        {"rpc": two[:1], "draft_device": (two[0],)},
        {"rpc": two, "device": ("RPC1",), "draft_device": ("RPC0",), "draft_gpu_layers": 1},
        {"rpc": two, "device": ("none",)},
    ):
        assert answer(target, draft, **options) == here, options


def test_a_running_state_comes_back_over_there(workers: list[RunningWorker], tiny_recurrent: Path) -> None:
    """A cache that cannot be cut back goes back to saved states, which are asked for through the pipe as well."""
    text = Sampling(seed=1, temperature=0.0, max_tokens=40, min_tokens=40)
    found = []
    for rpc in ((), (workers[0].endpoint,)):
        options = EngineOptions(n_ctx=256, threads=1, rpc=rpc, draft_length=3)
        with spec_local.load(tiny_recurrent, draft="text", options=options) as engine:
            assert engine.describe()["caches"]["target"] != "anywhere"
            found.append(engine.generate("abcd abcd abcd abcd", sampling=text))
    assert found[0].token_ids == found[1].token_ids
    assert found[1].statistics.tested


def test_a_hosted_context_is_a_context(workers: list[RunningWorker], target: Path) -> None:
    """Every operation of a cache, there and here, on the same numbers."""
    options = ContextOptions(n_ctx=128, n_seq=3, n_batch=32, max_rows=8, threads=1)
    undo = ExitStack()
    host = undo.enter_context(Host([workers[0].endpoint]))
    there = host.open(target, Offload(devices=("RPC0",)), options)
    model = undo.enter_context(Model(target, Offload(devices=("none",))))
    here = open_context(model, options)
    undo.callback(here.close)
    assert (there.memory.kind, there.n_batch) == (classify(here).kind, here.n_batch)
    assert [getattr(there.model, fact) for fact in FACTS] == [getattr(model, fact) for fact in FACTS]
    assert there.model.vocabulary.tokenize("the end") == model.vocabulary.tokenize("the end")
    assert there.model.chat_template() == model.chat_template()

    def both(chunks: Sequence[Chunk]) -> None:
        for a, b in zip(there.decode(chunks), here.decode(chunks), strict=True):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, b)
        assert [there.length(seq) for seq in range(3)] == [here.length(seq) for seq in range(3)]

    with undo:
        compare(there, here, both)


@pytest.mark.parametrize("pad_width", [0, 4])
def test_hidden_states_come_from_there(workers: list[RunningWorker], tiny_folder: Path, pad_width: int) -> None:
    path = write_mtp(tiny_folder / "remote-states.gguf", "hy_v3", "random", seed=3)
    options = ContextOptions(n_ctx=64, n_seq=2, n_batch=32, threads=1, pad_width=pad_width, states=True)
    chunks = [Chunk(0, range(9), 2, states=True), Chunk(1, [7, 8, 9], 1, states=True)]
    with Host([workers[0].endpoint]) as host, Model(path, Offload(devices=("none",))) as model:
        there, here = host.open(path, Offload(devices=("RPC0",)), options), open_context(model, options)
        assert (there.state_width, there.no_states) == (here.state_width, "") == (WIDTH, "")
        for part in (chunks, chunks[:1], [Chunk(1, [3], 1), Chunk(0, [4, 5], 0, states=True)]):
            for context in (there, here):
                context.decode(part)
            for chunk, found, right in zip(part, there.states(), here.states(), strict=True):
                assert (found is None) == (right is None) == (not chunk.states)
                if found is not None and right is not None:
                    assert found.shape == right.shape
                    assert float(np.abs(found - right).max()) < 1e-5
        there.abort(True)
        with pytest.raises(Aborted):
            there.decode(chunks[1:])
        assert there.states() == []
        there.abort(False)
        with pytest.raises(CacheError):
            there.decode([Chunk(0, [0] * 60, 0, states=True)])
        assert there.states() == []
        plain = there.sibling(ContextOptions(n_ctx=64, threads=1))
        assert (plain.state_width, plain.no_states) == (0, "they were not asked for")
        plain.decode([Chunk(0, [1], 1)])
        assert plain.states() == [None]
        for context in (plain, there, here):
            context.close()


def compare(there: HostedContext, here: LocalContext, both: Callable[[Sequence[Chunk]], None]) -> None:
    both([Chunk(0, range(20), 0), Chunk(1, range(5), 2)])
    both([Chunk(0, [7, 8], 2), Chunk(1, [9], 1)])
    for context in (there, here):
        context.trim(0, 10)
        context.copy(0, 2, 6)
    both([Chunk(0, [3], 1), Chunk(2, [4], 1)])
    state = there.checkpoint(0)
    sibling = there.sibling(ContextOptions(n_ctx=64, threads=1))
    sibling.restore(0, state)
    assert sibling.length(0) == there.length(0) == 11
    (alone,) = sibling.decode([Chunk(0, [5], 1)])
    np.testing.assert_array_equal(alone, there.decode([Chunk(0, [5], 1)])[0])
    sibling.close()
    there.trim(0, 11)
    with pytest.raises(Exception, match="is full"):
        there.decode([Chunk(1, [0] * 126, 0)])
    there.abort(True)
    with pytest.raises(Exception, match="stopped before it began"):
        there.decode([Chunk(1, [0], 1)])
    there.abort(False)
    both([Chunk(1, [0], 1)])
    there.close()
    with pytest.raises(Exception, match="is closed"):
        there.decode([Chunk(1, [0], 1)])


def test_memory_is_split_as_asked_by_the_workers_own_account(workers: list[RunningWorker], target: Path) -> None:
    header = read_header(target)
    output = split_weights(header, 1).device
    block = split_weights(header, 2).device - output + kv_bytes(header, 256) // 4
    scratch = 450_000
    for split, blocks in (((1.0, 1.0), (3, 1)), ((1.0, 4.0), (1, 3)), ((4.0, 1.0), (4, 0)), ((1.0, 0.0), (4, 0))):
        seen = [len(worker.lines) for worker in workers]
        rpc = tuple(worker.endpoint for worker in workers)
        options = EngineOptions(
            n_ctx=64, batch_size=32, threads=1, rpc=rpc, tensor_split=split, draft_length=0, gpu_layers="all"
        )
        there = [blocks[0] * block, blocks[1] * block]
        there[1 if split[1] else 0] += output  # as llama.cpp counts: the output is the last layer
        with spec_local.load(target, draft="none", options=options):
            for worker, since, weights in zip(workers, seen, there, strict=True):
                if weights:
                    assert weights < held(worker, since) < weights + scratch < weights + block
        for worker, since in zip(workers, seen, strict=True):
            if any(line.startswith("holding") for line in worker.lines[since:]):
                wait_until(lambda w=worker, n=since: any("has gone" in line for line in w.lines[n:]))  # type: ignore[misc]


def test_layers_that_do_not_fit_a_number_stay_here(workers: list[RunningWorker], target: Path) -> None:
    """--gpu-layers N is the output and the last N - 1 blocks; what `split_weights` says is what the worker holds."""
    header = read_header(target)
    for count in (1, 3):
        since = len(workers[0].lines)
        options = EngineOptions(n_ctx=64, batch_size=32, threads=1, rpc=(workers[0].endpoint,), draft_length=0)
        with spec_local.load(target, draft="none", options=options.model_copy(update={"gpu_layers": count})) as engine:
            weights = split_weights(header, count).device
            assert weights < held(workers[0], since) < weights + kv_bytes(header, 256) + 450_000
            assert engine.memory.on_devices > weights
        wait_until(lambda n=since: any("has gone" in line for line in workers[0].lines[n:]))  # type: ignore[misc]


def test_without_a_split_layers_follow_free_memory(target: Path) -> None:
    large, small = RunningWorker("--memory", "600MB"), RunningWorker("--memory", "300MB")
    try:
        options = EngineOptions(n_ctx=64, threads=1, rpc=(large.endpoint, small.endpoint), draft_length=0)
        with spec_local.load(target, draft="none", options=options):
            assert held(large, 0) > 2 * held(small, 0)
    finally:
        large.stop()
        small.stop()


def test_auto_takes_as_many_layers_as_fit(target: Path) -> None:
    header = read_header(target)
    options = EngineOptions(n_ctx=256, gpu_layers="auto", rpc=("a:1",))
    whole = plan(options, header, None, Room(10**10, devices=10**9, remote=10**9))
    assert whole.gpu_layers == header.layers.count + 1
    some = plan(options, header, None, Room(10**10, devices=int(0.8 * whole.on_devices), remote=10**9))
    assert 0 < some.gpu_layers < header.layers.count
    assert some.on_devices <= 0.8 * 0.8 * whole.on_devices
    worker = RunningWorker("--memory", f"{some.on_devices * 5 // 4}")
    try:
        wanted = options.model_copy(update={"rpc": (worker.endpoint,), "threads": 1, "draft_length": 0})
        with spec_local.load(target, draft="none", options=wanted) as engine:
            assert 0 < engine.options.gpu_layers <= header.layers.count  # type: ignore[operator]
            assert engine.generate("a", sampling=SAMPLING).token_ids
    finally:
        worker.stop()


def test_the_draft_stays_here_unless_asked(workers: list[RunningWorker]) -> None:
    found = ask_workers([worker.endpoint for worker in workers])
    rpc = tuple(worker.endpoint for worker in found)
    placed = place(EngineOptions(rpc=rpc), found)
    assert placed.device[:2] == ("RPC0", "RPC1") and not any(name.startswith("RPC") for name in placed.draft_device)
    assert place(EngineOptions(rpc=rpc, draft_device=("rpc1",)), found).draft_device == ("RPC1",)
    assert place(EngineOptions(rpc=rpc, device=(rpc[1],)), found).device == ("RPC1",)
    assert place(EngineOptions(rpc=rpc, device=("none",)), found).device == ("none",)
    with pytest.raises(UsageError, match=r"no device called 'RPC2'.*RPC0, RPC1"):
        place(EngineOptions(rpc=rpc, device=("RPC2",)), found)
    room = room_for(placed, found, True)
    assert room.remote == 2 * 10**9 <= room.devices
    alone = EngineOptions(rpc=rpc, device=("RPC0",), draft_device=("none",), tensor_split=(1, 2)).without_workers()
    assert (alone.rpc, alone.device, alone.draft_device, alone.tensor_split) == ((), (), ("none",), ())


def test_a_slow_link_is_learnt_and_longer_drafts_pay(workers: list[RunningWorker], target: Path, draft: Path) -> None:
    """V(n) and the saved profile belong to the devices: over a slow link a pass costs the same with more rows."""
    curves, lengths = {}, {}
    for delay_s in (0.0, 0.05):
        link = SlowLink(workers[0].endpoint, delay_s)
        options = EngineOptions(n_ctx=256, threads=1, rpc=(link.endpoint,))
        with spec_local.load(target, draft=draft, options=options) as engine:
            curves[delay_s] = cost_profile(engine.loaded)
            greedy = SAMPLING.model_copy(update={"temperature": 0.0})
            engine.generate("hello the world", sampling=greedy)  # the first pass of every width is set up over the link
            result = engine.generate("hello the world", sampling=greedy)
            lengths[delay_s] = result.statistics.drafted / result.statistics.rounds
        link.close()
    slow = curves[0.05].target
    assert slow.seconds(1) > 0.05
    assert slow.seconds(8) < 1.5 * slow.seconds(1)  # a tiny model's own rows cost nothing beside the link
    assert curves[0.0].identity != curves[0.05].identity
    assert lengths[0.05] > 1


def test_a_batch_keeps_what_is_written_and_resumes(
    mortal: RunningWorker, target: Path, draft: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f'{{"prompt": "line {i}", "max_tokens": 24}}\n' for i in range(40)), encoding="utf-8")
    command = ["generate", "--input", str(source), "--output", str(output), "--parallel", "2", "--n-ctx", "256"]
    command += ["-m", str(target), "-d", str(draft), "--threads", "1", "--seed", "1", "--rpc", mortal.endpoint]

    def kill_after_some_lines() -> None:
        wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") > 2)
        mortal.kill()

    threading.Thread(target=kill_after_some_lines, daemon=True).start()
    assert main(command) == ExitCode.BACKEND
    assert "A worker was lost" in capsys.readouterr().err
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert 2 < len(records) < 40 and not any("error" in record for record in records)
    again = RunningWorker(port=mortal.port)
    try:
        assert main([*command, "--resume"]) == ExitCode.OK
    finally:
        again.stop()
    assert len(output.read_text(encoding="utf-8").splitlines()) == 40


def test_doctor_shows_workers_and_a_decode_on_each(
    workers: list[RunningWorker], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [word for worker in workers for word in ("--rpc", worker.endpoint)]
    assert main(["doctor", "--json", *flags]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [worker["endpoint"] for worker in report["workers"]] == [worker.endpoint for worker in workers]
    (device,) = report["workers"][1]["devices"]
    assert (device["name"], device["works"], device["total_bytes"]) == ("RPC1", True, 10**9)


def test_verify_runs_on_workers(workers: list[RunningWorker], target: Path, draft: Path) -> None:
    """Checks reach below the engine, to contexts of their own: they too must be made where the model is."""
    from spec_local.verify.rig import Rig

    options = EngineOptions(n_ctx=256, threads=1, rpc=tuple(worker.endpoint for worker in workers))
    with spec_local.load(target, draft=draft, options=options) as engine:
        rig = Rig(engine, 128, 8, lambda: False)
        started = time.monotonic()
        sequence = rig.play_padded("hello", SAMPLING, {}, 0)
        assert len(sequence.emitted) == 48 and time.monotonic() > started
        rig.close()


def test_kernels_of_our_own_beside_a_worker(workers: list[RunningWorker], tmp_path: Path) -> None:
    """One layer there, the rest here with our kernels; with every layer there they have nothing to do."""
    from spec_local.llama.kernels import build
    from spec_local.llama.tiny_model import write_tiny_model

    if build.architecture_problem() or not (build.library_path().exists() or build.compiler()):
        pytest.skip("there are no kernels here")
    model = tmp_path / "tiny.gguf"
    write_tiny_model(model, "Q8_0")
    sampling = Sampling(max_tokens=16, temperature=0)

    def text(**options: object) -> tuple[str, bool]:
        chosen = EngineOptions.model_validate(
            {"n_ctx": 128, "threads": 1, "draft_length": 2, "kernels": "auto", **options}
        )
        with spec_local.load(model, draft="text", options=chosen) as engine:
            return engine.generate("hello", raw=True, sampling=sampling).text, engine.loaded.kernels.on

    rpc = (workers[0].endpoint,)
    here, on = text()
    assert on
    assert text(rpc=rpc, gpu_layers=1) == (here, True)
    assert text(rpc=rpc, gpu_layers=1, kernels="off") == (here, False)
    assert text(rpc=rpc)[1] is False
