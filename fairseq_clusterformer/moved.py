"""What has moved to examples/ of the repository, and where it is now."""

import argparse
from collections.abc import Container, Mapping, Sequence

from fairseq_clusterformer.errors import bad_option

_XLQA, _OPENKP = "examples/xlqa", "examples/etc/openkp"
#: commands by their words
COMMANDS = {
    **dict.fromkeys(("vectors", "similar"), f"the Python in {_XLQA}/README.md"),
    "prepare keyphrases": f"python {_OPENKP}/prepare.py",
    "evaluate keyphrases": f"the Python in {_OPENKP}/README.md",
}
_SENTENCES = "cr mr subj mpqa 20news snli scitail sick quora wikiqa msrp"
_GLUE = "cola sst2 mrpc stsb qqp mnli qnli rte wnli"
#: the folder of corpora, by the command that prepared them
_CORPORA = {
    "qa": ("question_answering", "quasar-t searchqa natural-questions qed hotpotqa 2wiki wikihop"),
    "classification": ("classification", f"{_SENTENCES} {_GLUE}"),
}
#: the plug-in of architectures and tasks, by how their names begin
_USER_DIRS = {"bidaf_reader": _XLQA, "qanet_reader": _XLQA, "etc_keyphrases": _OPENKP}


def user_dir_of(name: str) -> str | None:
    """The plug-in of an architecture or a task that is not in this package; None: not known."""
    return next((d for begin, d in _USER_DIRS.items() if name.startswith(begin)), None)


def check_moved(words: Sequence[str], known: Mapping[str, Container[str]]) -> None:
    """Raise UserError if a command line of fairseq's names an architecture or a task of a plug-in
    that is not loaded; ``known`` are those that are, by "arch" and "task"."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--arch", "-a", default="")
    parser.add_argument("--task", default="")
    for option, name in vars(parser.parse_known_args(words)[0]).items():
        if name not in known[option] and (folder := user_dir_of(name)):
            allowed = f"it with --user-dir {folder}, in the repository"
            raise bad_option(f"--{option}", name, allowed, "it has moved")


def check_corpus(command: str, words: Sequence[str]) -> None:
    """Raise UserError if `clusterformer prepare COMMAND` is given a corpus of an example's."""
    folder, names = _CORPORA[command]
    if words and words[0] in names.split():
        allowed = f"python examples/{folder}/prepare.py {words[0]}, in the repository"
        raise bad_option("CORPUS", words[0], allowed, "it has moved")
