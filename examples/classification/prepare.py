"""Prepare a data set of labelled texts or pairs that the papers' tables need for fairseq.

  python examples/classification/prepare.py mr data-bin --source DIR

DEST/NAME is what `clusterformer prepare classification` makes, which prepares your own texts.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from fairseq_clusterformer.cli.main import program
from fairseq_clusterformer.cli.prepare.classification import prepare_known
from fairseq_clusterformer.corpora.files import aligned_lines, numbered_lines, wrong
from fairseq_clusterformer.corpora.labelled import LabelledCorpus, LabelledText, read_labelled
from fairseq_clusterformer.errors import bad_option

NAME = "python examples/classification/prepare.py"
GROUPS = """alt.atheism comp.graphics comp.os.ms-windows.misc comp.sys.ibm.pc.hardware
comp.sys.mac.hardware comp.windows.x misc.forsale rec.autos rec.motorcycles rec.sport.baseball
rec.sport.hockey sci.crypt sci.electronics sci.med sci.space soc.religion.christian
talk.politics.guns talk.politics.mideast talk.politics.misc talk.religion.misc""".split()


class Form(NamedTuple):
    files: dict[str, tuple[str, ...]]  # of each part, patterns of the names of its files
    read: Callable[..., Iterator[LabelledText]]
    facts: dict = {}  # more, as `LabelledCorpus` has them


def read_class_files(files: Sequence[Path]) -> Iterator[LabelledText]:
    """Yield the examples of files with one text per line, a file for each class: "0", "1"..."""
    for label, path in enumerate(files):
        for where, line in numbered_lines(path, "latin-1"):
            yield LabelledText(str(label), (line,), where)


def read_aligned(files: Sequence[Path]) -> Iterator[LabelledText]:
    """Yield the examples of four files with equally many lines: label, group and both texts."""
    for number, (label, group, *texts) in enumerate(aligned_lines(files), 1):
        yield LabelledText(label, tuple(texts), f"{files[0]}: line {number:,}", group)


def read_posts(files: Sequence[Path]) -> Iterator[LabelledText]:
    """Yield the posts of a part, sorted by group and number. Of their headers, which give the
    group away, the subject is kept."""
    (folder,) = files
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        place = path.relative_to(folder)
        if len(place.parts) != 2:
            raise wrong(folder, place, "GROUP/NUMBER")
        post = path.read_bytes().decode("latin-1").replace("\r\n", "\n")
        header, _, body = post.partition("\n\n")
        subject = re.search(r"^Subject:(.*)", header, re.MULTILINE)
        text = f"{subject[1].strip() if subject else ''}\n\n{body}"
        yield LabelledText(path.parent.name, (text,), str(path))


def _columns(label: str, *texts: str, **how) -> Callable:
    return partial(read_labelled, label=label, texts=texts, **{"kind": "tsv"} | how)


def _each(pattern: str, read: Callable, tokenised: bool = False, **names: str) -> Form:
    """One file for each part; {} stands for the part's name in `names`."""
    parts = {part: (pattern.format(name),) for part, name in names.items()}
    return Form(parts, read, {"tokenised": tokenised})


def _aligned(**names: str) -> Form:
    """Four files for each part, in a folder, as in castorini/data."""
    files = ("sim.txt", "id.txt", "a.toks", "b.toks")
    parts = {part: tuple(f"{folder}/{file}" for file in files) for part, folder in names.items()}
    return Form(parts, read_aligned, {"tokenised": True})


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


def _sentences(name: str, *more: Form) -> dict:
    """Two classes of sentences, for ten folds."""
    lines = _columns("label", "text", kind="lines", names=("label", "text"), encoding="latin-1")
    forms = [Form({"all": (name,)}, lines), *more]
    return {"forms": forms, "labels": _BINARY, "folds": 10, "tokenised": True}


def _pairs(labels: dict[str, str], *forms: Form, **facts) -> dict:
    return {"forms": forms, "labels": labels, "inputs": 2, **facts}


def _glue(folder: str, read: Callable, *labels: str, inputs: int = 2, **names: str) -> dict:
    """A task of GLUE, which has no labels for its test sets."""
    names = names or {"train": "train", "valid": "dev"}
    return _pairs(_same(*labels), _each(f"{folder}/{{}}.tsv", read, **names), inputs=inputs)


_BINARY, _MR = _same("0", "1"), ("rt-polarity.neg", "rt-polarity.pos")
_NLI = ("contradiction", "entailment", "neutral")
_DEV = {"train": "train", "valid": "dev", "test": "test"}
_TWO = {"train": "train", "test": "test"}  # a share of train becomes valid
_SICK = {"train": "train", "valid": "trial", "test": "test_annotated"}
# test: the mismatched pairs
_MNLI = {"train": "train", "valid": "dev_matched", "test": "dev_mismatched"}
_ENTAILED = ("entailment", "not_entailment")
_PREMISE = ("premise", "hypothesis")
_read_snli = _columns("gold_label", "sentence1", "sentence2", kind="jsonl", unlabelled="-")
_read_scitail = _columns("label", *_PREMISE, names=(*_PREMISE, "label"))
_read_quora = _columns("is_duplicate", "question1", "question2", kind="quoted tsv")
_read_quora_parts = _columns("label", "text1", "text2", names=("label", "text1", "text2", "id"))
_read_sick = _columns("entailment_judgment", "sentence_A", "sentence_B")
_read_wikiqa = _columns("Label", "Question", "Sentence", group="QuestionID")
_read_msrp = _columns("Quality", "#1 String", "#2 String")
_read_cola = _columns("label", "text", names=("source", "label", "mark", "text"))
_read_glue = _columns("label", "sentence1", "sentence2")

_NEWS = {"labels": _same(*GROUPS), "max_length": 1_500, "settings": {"strip": ["fields"]}}
_WIKIQA = _each("WikiQA-{}.tsv", _read_wikiqa, **_DEV)
#: of each data set the forms that it is looked for in, and its facts
CORPORA: dict[str, dict] = {
    "cr": _sentences("custrev.all"),
    "mr": _sentences("rt-polarity.all", Form({"all": _MR}, read_class_files)),
    "subj": _sentences("subj.all"),
    "mpqa": _sentences("mpqa.all"),
    "20news": {"forms": [_each("20news-bydate-{}", read_posts, **_TWO)], **_NEWS},
    # 1.0; pairs without a gold label are dropped
    "snli": _pairs(_same(*_NLI), _each("snli_1.0_{}*.jsonl*", _read_snli, **_DEV)),
    "scitail": _pairs(  # tsv_format, or snli_format
        {"entails": "entailment"} | _same("entailment", "neutral"),
        _each("scitail_1.0_{}.tsv", _read_scitail, **_DEV),
        _each("scitail_1.0_{}.txt", _read_snli, **_DEV),
    ),
    "sick": _pairs(  # with its entailment judgements; the trial set is valid
        {name.upper(): name for name in _NLI}, _each("SICK_{}.txt", _read_sick, **_SICK)
    ),
    "quora": _pairs(  # as it was released, or as Wang et al. (2017) split it
        _BINARY,
        Form({"all": ("quora_duplicate_questions.tsv",)}, _read_quora),
        _each("{}.tsv", _read_quora_parts, tokenised=True, **_DEV),
    ),
    # the question of each pair is its group
    "wikiqa": _pairs(_BINARY, _WIKIQA, _aligned(**_DEV), grouped=True),
    "msrp": _pairs(_BINARY, _each("msr_paraphrase_{}.txt", _read_msrp, **_TWO), _aligned(**_TWO)),
    "cola": _glue("CoLA", _read_cola, *_BINARY, inputs=1),
    "sst2": _glue("SST-2", _columns("label", "sentence"), *_BINARY, inputs=1),
    "mrpc": _glue("MRPC", _read_msrp, *_BINARY),
    "stsb": _glue("STS-B", _columns("score", "sentence1", "sentence2")),
    "qqp": _glue("QQP", _columns("is_duplicate", "question1", "question2", drops=True), *_BINARY),
    "mnli": _glue("MNLI", _columns("gold_label", "sentence1", "sentence2"), *_NLI, **_MNLI),
    "qnli": _glue("QNLI", _columns("label", "question", "sentence"), *_ENTAILED),
    "rte": _glue("RTE", _read_glue, *_ENTAILED),
    "wnli": _glue("WNLI", _read_glue, *_BINARY),
}


def known_corpus(name: str, source: Path) -> LabelledCorpus:
    """Return a data set whose files --source has in one of its forms, or raise UserError."""
    facts = dict(CORPORA[name])
    form, files = _find(source, facts.pop("forms"))
    return LabelledCorpus(name, files=files, read=form.read, **facts | form.facts)


def _find(source: Path, forms: list[Form]) -> tuple[Form, dict[str, tuple[Path, ...]]]:
    """The first form whose files are below a folder, and these, for each part."""
    lacking = ["it has no files of that name"]  # or the last pattern that one of some lacks
    for form in forms:
        patterns = chain.from_iterable(form.files.values())
        found = {pattern: sorted(source.rglob(pattern)) for pattern in patterns}
        for pattern, paths in found.items():
            if len(paths) > 1:
                both = " and ".join(map(str, paths))
                raise bad_option("--source", source, f"one {pattern}", both)
        if all(found.values()):
            files = form.files.items()
            return form, {part: tuple(found[each][0] for each in names) for part, names in files}
        if any(found.values()):
            lacking += [f"no {pattern}" for pattern, paths in found.items() if not paths]
    allowed = (", ".join(chain.from_iterable(form.files.values())) for form in forms)
    allowed = f"a folder that holds {'; or '.join(allowed)}"
    raise bad_option("--source", source, allowed, lacking[-1])


def main(arguments: Sequence[str]) -> int:
    divided = ("20news", "msrp")  # whose valid is drawn from train
    how = {"names": CORPORA, "divided": divided, "find": known_corpus}
    return prepare_known(NAME, __doc__, arguments, **how)


if __name__ == "__main__":
    sys.exit(program(NAME, main, sys.argv[1:]))
