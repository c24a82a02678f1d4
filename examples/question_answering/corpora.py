"""What the command knows of each corpus: its reader, its files, and options of its own."""

from fairseq_clusterformer.corpora.question_answering.build import PARAGRAPHS, QuestionCorpus
from question_answering.hops import several_hops, wikihop
from question_answering.natural_questions import natural_questions, qed
from question_answering.open_domain import quasar_t, searchqa, triviaqa

_CONTEXTS = {"contexts": ("the passages (default: short)", {"choices": ("short", "long")})}
_POOL = {
    "corpus PATH": (
        "a JSON list of {title, text}, for questions without paragraphs",
        {"dest": "pool"},
    ),
    "distractors N": "paragraphs drawn from --corpus per question (default: 8)",
}
_TRIVIAQA = {"archive": "triviaqa-rc*.tar*"}

CORPORA = {
    "quasar-t": QuestionCorpus(
        quasar_t,
        "questions/train_questions.json* questions/dev_questions.json* "
        "questions/test_questions.json*",
        _CONTEXTS,
    ),
    "searchqa": QuestionCorpus(searchqa, "train* val* test*"),
    "triviaqa-wikipedia": QuestionCorpus(
        triviaqa, "qa/wikipedia-train.json qa/wikipedia-dev.json", **_TRIVIAQA
    ),
    "triviaqa-web": QuestionCorpus(triviaqa, "qa/web-train.json qa/web-dev.json", **_TRIVIAQA),
    "natural-questions": QuestionCorpus(natural_questions, "*train*.jsonl* *dev*.jsonl*"),
    "qed": QuestionCorpus(qed, "qed-train*.jsonlines* qed-dev*.jsonlines*", PARAGRAPHS),
    "hotpotqa": QuestionCorpus(
        several_hops, "hotpot_train_v1*.json* hotpot_dev_distractor_v1*.json*", titled=True
    ),
    "2wiki": QuestionCorpus(several_hops, "train.json* dev.json*", _POOL, titled=True),
    "wikihop": QuestionCorpus(wikihop, "train.json* dev.json*"),
}
