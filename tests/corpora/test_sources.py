"""What is no plain file is refused by all that prepare, and so is what changes meanwhile; what
was edited is other data, at any size."""

import os
import re
from pathlib import Path

import pytest

from fairseq_clusterformer.corpora import binarize
from fairseq_clusterformer.data.qa import QAWriter
from tests.corpora.commands import files_in, one_line, run, write

QUESTION = '{"question": "Who?", "context": "Ada sang. Bob %d ran.", "answers": ["Ada"]}\n'
#: of a task: its options, and what a file of it holds
TASKS = {
    "lm": ("text {source} {dest}", "".join(f"a b c {i}\n" for i in range(40))),
    "translation": (
        "text {dest} --source-lang de --target-lang en --train {source}",
        "".join(f"a b {i}\tc d {i}\n" for i in range(60)),
    ),
    "classification": (
        "text {source} {dest}",
        "".join(f"{'xy'[i % 2]}\ta b {i}\n" for i in range(60)),
    ),
    "qa": ("text {source} {dest}", "".join(QUESTION % i for i in range(30))),
}
SUFFIX = {"qa": "jsonl"}


def prepare(task: str, source: object, folder: Path, *more: object) -> int:
    words = TASKS[task][0].format(source=source, dest=folder / "dest")
    return run("prepare", task, words, *more)


@pytest.fixture
def source(task, tmp_path):
    return write(tmp_path / f"train.{SUFFIX.get(task, 'tsv')}", TASKS[task][1])


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", ["device", "pipe", "none"])
def test_no_plain_file(task, kind, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    source = "/dev/null" if kind == "device" else tmp_path / kind
    assert prepare(task, source, tmp_path) == 1
    assert f"{source}" in (line := one_line(capsys))
    problem = "no such file" if kind == "none" else "no plain file"
    assert f"{problem}; allowed: " in line or "found nothing; allowed: " in line
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("task", ["translation", "qa"])
def test_no_plain_file_of_a_split(task, source, tmp_path, capsys):
    assert prepare(task, source, tmp_path, "--valid", "/dev/null") == 1
    assert "/dev/null" in one_line(capsys)


@pytest.mark.parametrize("task", TASKS)
def test_a_source_that_changes_while_it_is_prepared(task, source, tmp_path, monkeypatch, capsys):
    module, name = (QAWriter, "write") if task == "qa" else (binarize, "write_dataset")
    work = getattr(module, name)

    def changing(*given, **how):
        with source.open("a") as file:
            file.write("x\n")
        return work(*given, **how)

    monkeypatch.setattr(module, name, changing)
    assert prepare(task, source, tmp_path) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "a source has changed meanwhile; allowed: run it again" in said
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize("task", TASKS)
def test_an_edit_of_the_same_size_is_seen(task, source, tmp_path, capsys):
    assert [prepare(task, source, tmp_path) for _ in range(2)] == [0, 0]
    capsys.readouterr()
    source.write_text((before := TASKS[task][1]).replace("1", "2"))
    assert prepare(task, source, tmp_path) == 1
    assert re.search(f"was prepared otherwise .*{source.name}", one_line(capsys))
    source.write_text(before)
    source.touch()
    assert prepare(task, source, tmp_path) == 0


@pytest.mark.parametrize(("task", "pieces"), [("translation", 278), ("qa", 286)])
def test_a_run_that_was_stopped_goes_on_with_its_stages(
    task, source, pieces, tmp_path, monkeypatch, capsys
):
    """It learns no subwords again, and ends as if nothing had been; another option begins anew."""
    option = "--bpe-operations" if task == "translation" else "--sentencepiece"
    module, name = (QAWriter, "write") if task == "qa" else (binarize, "write_dataset")
    learn, learned = binarize.train_sentencepiece, []

    def stopped(*_given, **_how):
        raise KeyboardInterrupt

    def counted(*given, **how):
        learned.append(given)
        return learn(*given, **how)

    monkeypatch.setattr(binarize, "train_sentencepiece", counted)
    with monkeypatch.context() as context:
        context.setattr(module, name, stopped)
        assert prepare(task, source, tmp_path, option, pieces - 1) == 130
        assert prepare(task, source, tmp_path, option, pieces) == 130
    assert "was made otherwise" in capsys.readouterr().out
    assert not (tmp_path / "dest").exists()
    assert prepare(task, source, tmp_path, option, pieces, "--workers 2") == 0
    assert "going on with what is finished in" in capsys.readouterr().out
    assert len(learned) == 2
    assert not (tmp_path / "dest.partial").exists()
    found = files_in((tmp_path / "dest").rename(tmp_path / "first"))
    assert prepare(task, source, tmp_path, option, pieces, "--workers 1") == 0
    assert files_in(tmp_path / "dest") == found
