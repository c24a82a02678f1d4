"""Malformed inputs of commands: no traceback, no hang, nothing of the user's lost.

    python -m tests.malformed FIRST RUNS    prints which are not right

A run is a command line of `COMMANDS` in a process that begins with everything imported, one of
whose files was damaged. Its number decides which and how, so a run can be made again.
"""

import contextlib
import io
import json
import lzma
import math
import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import fairseq_cli.train
import torch
from safetensors.torch import load_file, save_file

import fairseq_clusterformer.plugin  # noqa: F401
from fairseq_clusterformer.checkpoints.bundle import SHIPPED
from fairseq_clusterformer.cli.main import main
from fairseq_clusterformer.compat.checks import report_in_one_line
from tests.cli.in_process import PRETRAINED_CLASSIFIER, QUESTIONS
from tests.conversion.dense import LLAMAS, MAKERS
from tests.documents import books
from tests.documents.papers import pdf
from tests.forked import end_as_a_program
from tests.models.bert import folder_of

SECONDS = 60  # of a processor that a run may take; five times as long on a busy machine
MEMORY = 6 << 30  # bytes that it may write to
_TRAIN = (
    "fairseq-train {data} --task language_modeling --arch clusterformer_lm --cpu --optimizer adam"
    " --lr 0.01 --max-update 1 --batch-size 2 --tokens-per-sample 16 --decoder-layers 1"
    " --decoder-embed-dim 8 --decoder-input-dim 8 --decoder-output-dim 8 --num-workers 0"
    " --decoder-ffn-embed-dim 8 --decoder-attention-heads 2 --disable-validation"
    " --save-dir out --criterion clusterformer_cross_entropy --distributed-world-size 1"
)
COMMANDS = [
    "generate --checkpoint {model} --cpu --max-tokens 2 --input {text.txt}",
    "perplexity --checkpoint {model} --cpu --max-blocks 1 --text {text.txt} --tokens-per-sample 8",
    "perplexity --data {data} --checkpoint {checkpoint.pt} --cpu --max-blocks 1 --teacher-forced",
    "translate --checkpoint {translator} --cpu --beam 1 --input {lines.txt}",
    "answer --cpu --document {files.zip|document.pdf|text.txt|notes.txt.xz|page.html|page.md"
    "|mail.eml|letter.rtf|book.ipynb|book.epub|word.docx} --question Who",
    "answer --cpu --document {documents} --question Who",
    "draw --checkpoint {model} --text {lines.txt} --out out",
    "bundle {checkpoint.pt} out --data {data}",
    "export {model} out --to transformers",
    "export {gpt2|roberta|marian|bart|exported} out --to fairseq",
    "average --inputs {checkpoint.pt} {checkpoint.pt} --output out.pt",
    "convert {dense.pt} out --data {data} --updates 0 --near-window 4 --far-window 4 --clusters 2",
    "convert {llama} out --text {text.txt} --tokens 64 --tokens-per-sample 16 --updates 0"
    " --clusters 2 --near-window 4 --far-window 4",
    "prepare lm text {text.txt} out --words",
    "prepare lm text {text.txt} out --sentencepiece 400",
    "prepare translation text out --source-lang de --target-lang en --train {pair}",
    "prepare classification text {table.tsv} out",
    "prepare qa text {questions.json} out",
    # goes on from a checkpoint that has an optimizer's state
    _TRAIN.replace("--max-update 1", "--max-update 2")
    + " --attention window+neural --restore-file {checkpoint.pt}",
    f"fairseq-train {{classes}} {PRETRAINED_CLASSIFIER} --max-update 1 --save-dir out"
    " --pretrained {bert}",
    f"fairseq-train {{asked}} {QUESTIONS} --max-update 1 --save-dir out --disable-validation",
    _TRAIN,
]
#: in the place of a file: pipes, devices and links
NO_FILES = ("missing", "folder", "loop", "dangling", "outside", "fifo", "/dev/zero", "/dev/full")
#: in a file outside of a command's inputs, which it must not read
SECRET = "The password of the planted file is swordfish."


class Result(NamedTuple):
    """What came of a run."""

    number: int  # with which it can be made again
    words: list[str]
    spoilt: str  # what was done to it
    #: done, line (of an error), traceback, hang, lost (a file of the user's), killed, code (that a
    #: file brought was run) or leak (of what a link leads to)
    verdict: str
    said: str  # the last line that it printed

    @property
    def is_right(self) -> bool:
        return self.verdict in ("done", "line")


def make_inputs(folder: Path) -> None:
    """Good inputs of every kind."""
    text = "\n".join(topics[name] for name in sorted(topics))[:6000]
    (folder / "text.txt").write_text(text)
    (folder / "lines.txt").write_text("Ein Hund.\nZwei Katzen\n")
    (folder / "page.html").write_text(f"<h1>Title</h1><p>{text[:500]}</p><ul><li>Bob</ul>")
    (folder / "page.md").write_text(f"# Title\n\n| a | b |\n|--|--|\n| c | d |\n\n{text[:500]}")
    (folder / "mail.eml").write_text("Subject: a\n\nThe author is Alice.")
    (folder / "letter.rtf").write_text(r"{\rtf1\ansi The author is Alice.\par}")
    (folder / "book.ipynb").write_bytes(books.NOTEBOOK)
    (folder / "book.epub").write_bytes(books.book(""))
    (folder / "word.docx").write_bytes(books.word("The author is Alice."))
    (folder / "document.pdf").write_bytes(pdf("The author is Alice.", "And Bob."))
    (folder / "notes.txt.xz").write_bytes(lzma.compress(text[:500].encode()))
    with zipfile.ZipFile(folder / "files.zip", "w") as archive:
        archive.writestr("a.txt", "The author is Alice.")
    for language in ("de", "en"):
        lines = (f"{language} Hund {n} und {n + 1} Katzen\n" for n in range(60))
        (folder / f"pair.{language}").write_text("".join(lines))
    rows = [f"{label}\tsome {label} text {n}" for n in range(20) for label in ("good", "bad")]
    (folder / "table.tsv").write_text("\n".join(rows) + "\n")
    answers = [{"text": "Alice", "answer_start": 14}]
    articles = []
    for title in "abcdefgh":
        qas = [{"id": f"{title}{n}", "question": "Who?", "answers": answers} for n in range(3)]
        paragraph = {"context": f"The author is Alice {title}.", "qas": qas}
        articles.append({"title": title, "paragraphs": [paragraph]})
    data = {"data": articles}
    (folder / "questions.json").write_text(json.dumps(data))
    with contextlib.redirect_stdout(io.StringIO()):
        given = "prepare lm text {0}/text.txt {0}/data --bytes"
        assert main(given.format(folder).split()) == 0
        make_checkpoint(folder, "dense", "--attention full --no-save-optimizer-state")
        make_checkpoint(folder, "checkpoint", "--attention window+neural")
    for name in ("gpt2", "roberta", "marian", "bart", "llama"):
        (MAKERS | LLAMAS)[name](folder / name)
    folder_of("roberta", folder / "bert", "SequenceClassification")
    (folder / "documents" / "below").mkdir(parents=True)
    for number, name in enumerate(("page.html", "page.md", "mail.eml", "book.epub", "text.txt")):
        shutil.copy(folder / name, folder / "documents" / ("below" if number % 2 else "."))
    with contextlib.redirect_stdout(io.StringIO()):
        for given in (
            "bundle {0}/checkpoint.pt {0}/model --data {0}/data",
            "export {0}/model {0}/exported --to transformers",
            "prepare classification text {0}/table.tsv {0}/classes"
            " --tokenizer {0}/bert/tokenizer.json",
            "prepare qa text {0}/questions.json {0}/asked --sentencepiece 280",
        ):
            assert main(given.format(folder).split()) == 0
    shutil.copytree(SHIPPED / "multi30k-de-en", folder / "translator")


def make_checkpoint(folder: Path, name: str, more: str) -> None:
    """A checkpoint of a language model, after one update."""
    words = [word.format(data=folder / "data") for word in _TRAIN.split()]
    words[words.index("out")] = str(folder / "saved")
    words += ["--no-epoch-checkpoints", *more.split()]
    # in a child: fairseq's task, model and logs stay there
    assert os.waitpid(begin(lambda: run_words(words), folder), 0)[1] == 0
    (folder / "saved" / "checkpoint_last.pt").rename(folder / f"{name}.pt")


# ---- damage


class _Planted:
    """Unpickled, it makes a folder ``ran``."""

    def __reduce__(self):
        return os.mkdir, ("ran",)


def _flipped(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice((1, 3, 50)) if data else 0):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _lines(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    lines[draw.randrange(len(lines))] = draw.choice(LINES)
    return b"\n".join(lines)


LINES = (b"", b"\xff\xfe", b"<pad> 1", b"a b c", b"\x00", b"x " * 9000)
OTHERS = (b"", b"\n", b"\xef\xbb\xbf", bytes(range(200)), "ü".encode("utf-16"), b"{}", b"null")
OTHERS += (b"[[[[" * 500, b"PK\3\4", b"%PDF-1.7\n", b"\x1f\x8b", b"\xfd7zXZ\0", b"<![foo")
OTHERS += (b"<a <a" * 200, b"<svg>" * 3000)
#: what the bytes of any file can become
DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": lambda data, draw: data[: draw.randrange(max(1, len(data)))],
    "flipped": _flipped,
    "lines": _lines,
    "other": lambda _, draw: draw.choice(OTHERS),
    "planted": lambda *_: pickle.dumps(_Planted()),
}
STRANGE = (None, -1, 0, 0.5, 10**30, math.nan, math.inf, "", "x", [], {}, True, [1, [2]], {"a": 1})
STRANGE += (10**6, 2**31 - 1, "secret", "/dev/zero", ["model", "task"])
#: what a tensor can become
TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nan": lambda tensor: torch.full_like(tensor, 0) + math.nan,
    "inf": lambda tensor: torch.full_like(tensor, 0) + math.inf,
    "int": torch.Tensor.long,
    "flat": lambda tensor: tensor.flatten()[1:],
    "bool": lambda tensor: tensor > 0,
    "empty": lambda _: torch.empty(0),
}


def _edited(tree: object, draw: random.Random) -> object:
    """A tree of JSON with one key changed, removed or added."""
    holder = tree
    while keys := list(holder) if isinstance(holder, dict) else list(range(len(holder))):
        key = draw.choice(keys)
        below = holder[key]
        if not isinstance(below, (dict, list)) or not below or draw.random() < 0.15:
            break
        holder = below
    else:
        return tree
    what = draw.randrange(4)
    if what == 0 and isinstance(holder, dict):
        holder["unknown"] = draw.choice(STRANGE)
    elif what == 1:
        del holder[key]
    else:
        holder[key] = draw.choice(STRANGE)
    return tree


def _with_another_tensor(tensors: dict, draw: random.Random) -> dict:
    name = draw.choice([n for n, value in tensors.items() if isinstance(value, torch.Tensor)])
    what = draw.choice([*TENSORS, "gone"])
    tensor = tensors.pop(name)
    return tensors if what == "gone" else {**tensors, name: TENSORS[what](tensor).contiguous()}


def _edit(path: Path, draw: random.Random) -> bool:
    """Edit what a file holds, if there is a way for its kind."""
    if path.suffix == ".json":
        path.write_text(json.dumps(_edited(json.loads(path.read_text()), draw)))
    elif path.suffix == ".safetensors":
        save_file(_with_another_tensor(load_file(path), draw), path)
    elif path.suffix == ".pt":
        state = torch.load(path, weights_only=True)
        model = state.pop("model")
        if draw.random() < 0.5:
            model = _with_another_tensor(model, draw)
        else:
            state = _edited(state, draw)
        torch.save({"model": model, **state}, path)
    return path.suffix in (".json", ".safetensors", ".pt")


def spoil_file(path: Path, draw: random.Random, secret: Path) -> str:
    """Damage a file, by what it is; returns what was done."""
    place, is_named = draw.random(), path.parent.name == "in"
    if place < 0.08:
        kind = draw.choice(NO_FILES)
        path.unlink()
        leads = {"loop": path.name, "dangling": "nowhere", "outside": secret}
        if kind == "folder":
            path.mkdir()
        elif kind == "fifo" and not is_named:  # else a shell would wait for it, too
            os.mkfifo(path)
        elif kind not in ("missing", "fifo") and not (kind == "outside" and is_named):
            path.symlink_to(leads.get(kind, kind))
        return kind
    if place < 0.75 and _edit(path, draw):
        return "edited"
    damage = draw.choice([*DAMAGE])
    path.write_bytes(DAMAGE[damage](path.read_bytes(), draw))
    return damage


def make_words(command: str, inputs: Path, place: Path, draw: random.Random) -> list[str]:
    """A command line whose inputs are copied to `place`."""
    words, used = [], []
    for word in command.split():
        name = word.strip("{}")
        if name != word:
            used.append(draw.choice(name.split("|")))
            word = f"in/{used[-1]}"
        words.append(word)
    (place / "in").mkdir()
    for name in dict.fromkeys(used):
        if (inputs / name).is_dir():
            shutil.copytree(inputs / name, place / "in" / name)
        else:
            for file in inputs.glob(f"{name}*" if name == "pair" else name):
                shutil.copyfile(file, place / "in" / file.name)
    return words


def make_run(number: int, inputs: Path, place: Path) -> tuple[list[str], str]:
    """The command line of a run, and what is spoilt, in the folder `place`."""
    draw = random.Random(f"malformed {number}")
    words = make_words(COMMANDS[number % len(COMMANDS)], inputs, place, draw)
    file = draw.choice(sorted(file for file in (place / "in").rglob("*") if file.is_file()))
    (place / "secret").write_text(SECRET)
    return words, f"{file.relative_to(place)}: {spoil_file(file, draw, place / 'secret')}"


def run_words(words: list[str]) -> int:
    """What the command line does; returns its exit status."""
    if words[0] == "fairseq-train":
        sys.argv = words
        report_in_one_line()  # as the plug-in does when it is imported
        return fairseq_cli.train.cli_main() or 0
    return main(words)


def begin(work: Callable[[], int | None], place: Path) -> int:
    """Begin something in a child, in a folder, which gets what it prints as ``printed``; its exit
    status is what `work` returns. Returns the child's number."""
    if child := os.fork():
        return child
    out = os.open(place / "printed", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, out)):
        os.dup2(file, number)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace")  # as Python opens it
    os.chdir(place)
    end_as_a_program(work)


def content(folder: Path) -> dict[Path, object]:
    """What each file of a folder holds, and where each link leads."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    return {p: os.readlink(p) if p.is_symlink() else p.read_bytes() for p in paths}


def one(number: int, inputs: Path, good: str = "") -> Result:
    """Make a run; of the command `good`, if it is given, with good inputs."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if good:
            words, spoilt = make_words(good, inputs, place, random.Random(1)), "nothing"
        else:
            words, spoilt = make_run(number, inputs, place)

        def work() -> int | None:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            return run_words(words)

        before = content(place / "in")
        child = begin(work, place)
        end, status = time.monotonic() + 5 * SECONDS, None
        while status is None and time.monotonic() < end:
            ended, value = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(value) if ended else time.sleep(0.005)
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        printed = (place / "printed").read_text(errors="replace")
        said = (printed.strip().splitlines() or [""])[-1]
        written = [path.read_bytes() for path in place.glob("out*/**/*") if path.is_file()]
        seen = [printed.encode(errors="replace"), *written]
        traced = "Traceback (most recent" in printed or "Exception ignored" in printed
        verdicts = {
            "hang": status in (None, -signal.SIGXCPU),
            "lost": before != content(place / "in"),
            "code": (place / "ran").exists(),
            "leak": any(SECRET.encode() in text for text in seen),
            "killed": status is not None and status < 0,
            "traceback": traced or (status and not said),
            "line": status,
        }
        verdict = next((name for name, found in verdicts.items() if found), "done")
        return Result(number, words, spoilt, verdict, said)


if __name__ == "__main__":
    first, runs = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder))
        for number in range(first, first + runs):
            result = one(number, Path(folder))
            if not result.is_right or runs == 1:
                print(*result, sep=" | ", flush=True)
