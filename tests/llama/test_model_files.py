"""Files, vocabularies and metadata, on tiny models whole and damaged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tiny_gguf import END_OF_TEXT, END_OF_TURN, N_VOCAB, TEMPLATE, TURN, write_transformer

from spec_local.errors import Aborted, BackendError, ModelError, UsageError
from spec_local.llama.model import Model, Offload

ASTRONAUT = "👩🏽‍🚀"
DEVANAGARI = "नमस्ते दुनिया"
KOREAN = "안녕하세요 세계"


def test_facts_of_a_file(tiny_target: Path, tiny_recurrent: Path) -> None:
    with Model(tiny_target) as model:
        assert model.vocabulary.size == N_VOCAB
        assert model.vocabulary.end_ids == {END_OF_TEXT, END_OF_TURN}
        assert (model.vocabulary.bos, model.vocabulary.eos) == (END_OF_TEXT, END_OF_TURN)
        assert END_OF_TEXT not in model.vocabulary.tokenize("the")
        assert (model.n_swa, model.recurrent) == (0, False)
        assert model.chat_template() == TEMPLATE
        assert model.description.startswith("llama")
    with Model(tiny_recurrent) as model:
        assert model.recurrent


def test_a_long_template_is_read_whole(tiny_folder: Path) -> None:
    template = TEMPLATE + "{# " + "long " * 1000 + "#}"
    with Model(write_transformer(tiny_folder / "long-template.gguf", template=template)) as model:
        assert model.chat_template() == template
    with Model(write_transformer(tiny_folder / "no-template.gguf", template=None)) as model:
        assert model.chat_template() is None


def test_a_closed_model_says_so(tiny_target: Path) -> None:
    model = Model(tiny_target)
    model.close()
    model.close()
    with pytest.raises(BackendError, match="closed"):
        _ = model.n_swa


def test_progress_is_told_and_may_cancel(tiny_target: Path) -> None:
    told: list[float] = []

    def note(done: float) -> bool:
        told.append(done)
        return True

    Model(tiny_target, progress=note).close()
    assert told == sorted(told)
    assert told[-1] == 1.0
    with pytest.raises(Aborted, match="was cancelled"):
        Model(tiny_target, progress=lambda _done: False)


def test_what_a_progress_callback_raises_arrives(tiny_target: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C while loading strikes inside the callback: the only Python code that runs."""

    def interrupted(_done: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Model(tiny_target, progress=interrupted)
    assert "Traceback" not in capfd.readouterr().err


def _sentence(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        Model(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value.message


def test_missing_and_damaged_files_are_sentences(tiny_target: Path, tmp_path: Path) -> None:
    whole = tiny_target.read_bytes()
    assert "No such file" in _sentence(tmp_path / "missing.gguf")
    _sentence(tmp_path)
    for name, data in {
        "empty": b"",
        "three": whole[:3],
        "kilobyte": whole[:1024],
        "half": whole[: len(whole) // 2],
        "cut": whole[:-1],
        "magic": b"GGUX" + whole[4:],
        "page": b"<html><body>Not found</body></html>" * 100,
        "text": b"hello",
    }.items():
        damaged = tmp_path / f"{name}.gguf"
        damaged.write_bytes(data)
        _sentence(damaged)


def test_names_that_are_not_ascii(tiny_target: Path, tmp_path: Path) -> None:
    folder = tmp_path / "моделі 模型 ünï"
    folder.mkdir()
    path = folder / "my model (1).gguf"
    path.write_bytes(tiny_target.read_bytes())
    Model(path).close()
    assert "моделі 模型 ünï" in _sentence(folder / "no.gguf")


def test_offload_that_does_not_exist_is_refused(tiny_target: Path) -> None:
    with pytest.raises(UsageError, match="diagonal"):
        Model(tiny_target, Offload(split_mode="diagonal"))
    with pytest.raises(UsageError):
        Model(tiny_target, Offload(devices=("CUDA99",)))
    with pytest.raises(UsageError, match="tensor split"):
        Model(tiny_target, Offload(tensor_split=(1.0,) * 500))
    Model(tiny_target, Offload(devices=("none",))).close()
    Model(tiny_target, Offload(repack=False)).close()


def test_text_to_tokens_and_back_by_bytes(tiny_target: Path) -> None:
    with Model(tiny_target) as model:
        vocabulary = model.vocabulary
        for text in ("the abcd on an inn", ASTRONAUT, DEVANAGARI, KOREAN, "tab\tand\nline\x00end", ""):
            tokens = vocabulary.tokenize(text)
            assert vocabulary.text(tokens) == text
            assert b"".join(vocabulary.piece(token) for token in tokens) == text.encode()
        assert len(vocabulary.tokenize("abcdabcd")) == 2
        assert vocabulary.text(vocabulary.tokenize(ASTRONAUT)[:-1]).endswith("\ufffd")
        assert vocabulary.tokenize("\ud800") == vocabulary.tokenize("?")


def test_control_tokens_are_read_only_where_wanted_and_silent(tiny_target: Path) -> None:
    with Model(tiny_target) as model:
        vocabulary = model.vocabulary
        assert vocabulary.tokenize("<|im_start|>", parse_special=True) == [TURN]
        assert TURN not in vocabulary.tokenize("<|im_start|>")
        assert vocabulary.piece(TURN) == b""
        assert vocabulary.piece(TURN, special=True) == b"<|im_start|>"
        assert vocabulary.text([TURN, 97, END_OF_TURN], special=True).startswith("<|im_start|>")


def test_exactly_one_begin_token_and_never_an_end(tiny_folder: Path) -> None:
    path = write_transformer(tiny_folder / "bos-eos.gguf", add_bos=True, add_eos=True)
    with Model(path) as model:
        vocabulary = model.vocabulary
        plain = vocabulary.tokenize("the", parse_special=True)
        assert plain == [END_OF_TEXT, *vocabulary.tokenize("the", add_special=False)]
        assert vocabulary.tokenize("<|endoftext|>the", parse_special=True) == plain
        assert vocabulary.tokenize("", parse_special=True) == [END_OF_TEXT]
        # An end token that the text itself names stays.
        assert vocabulary.tokenize("the<|im_end|>", parse_special=True) == [*plain, END_OF_TURN]


def test_llama_cpps_log_stays_out_of_the_terminal_unless_asked_for(tiny_target: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from spec_local.llama.model import Model;"
        "from spec_local.llama.library import set_verbose, _log; set_verbose(sys.argv[2] == 'loud');"
        "Model(Path(sys.argv[1])).close(); assert _log"
    )
    for mode in ("quiet", "loud"):
        done = subprocess.run([sys.executable, "-c", code, str(tiny_target), mode], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        assert bool(done.stderr) == (mode == "loud")
