"""The known corpora of questions: which reader reads which files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .hops import babi, several_hops, wikihop
from .natural_questions import natural_questions
from .open_domain import quasar_t, searchqa, triviaqa
from .records import Record
from .squad import qed, squad


@dataclass(frozen=True)
class QuestionCorpus:
    """A corpus that the command knows."""

    reader: Callable[..., Iterator[Record]]  # of one of its files
    files: str = ""  # patterns of train, valid and test in --source, between blanks
    options: tuple[str, ...] = ()  # of its reader, by the names of the command's options
    few_words: bool = False  # so few that each is a piece of the sentencepiece model

    @property
    def patterns(self) -> list[str]:
        return self.files.split()

    def find(self, source: Path, pattern: str) -> list[Path]:
        """Return the files of a pattern in `source`, a folder in it, or TriviaQA's archive."""
        if found := sorted(source.glob(pattern)) or sorted(source.glob(f"*/{pattern}")):
            return found
        archives = sorted(source.glob("triviaqa-rc*.tar*")) if self.reader is triviaqa else []
        return [path / pattern for path in archives[:1]]


CORPORA = {
    "squad1": QuestionCorpus(squad, "train-v1.1*.json* dev-v1.1*.json*", ("paragraphs",)),
    "squad2": QuestionCorpus(squad, "train-v2.0*.json* dev-v2.0*.json*", ("paragraphs",)),
    "quasar-t": QuestionCorpus(
        quasar_t,
        "questions/train_questions.json* questions/dev_questions.json* "
        "questions/test_questions.json*",
        ("contexts",),
    ),
    "searchqa": QuestionCorpus(searchqa, "train* val* test*"),
    "triviaqa-wikipedia": QuestionCorpus(
        triviaqa, "qa/wikipedia-train.json qa/wikipedia-dev.json"
    ),
    "triviaqa-web": QuestionCorpus(triviaqa, "qa/web-train.json qa/web-dev.json"),
    "natural-questions": QuestionCorpus(natural_questions, "*train*.jsonl* *dev*.jsonl*"),
    "qed": QuestionCorpus(qed, "qed-train*.jsonlines* qed-dev*.jsonlines*", ("paragraphs",)),
    "hotpotqa": QuestionCorpus(
        several_hops, "hotpot_train_v1*.json* hotpot_dev_distractor_v1*.json*"
    ),
    "2wiki": QuestionCorpus(several_hops, "train.json* dev.json*", ("corpus", "distractors")),
    "babi": QuestionCorpus(babi, "qa*_train.txt qa*_test.txt", few_words=True),
    "wikihop": QuestionCorpus(wikihop, "train.json* dev.json*"),
}
