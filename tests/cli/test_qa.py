"""Question answering by fairseq's commands: trained, resumed, validated."""

import math
import re
from pathlib import Path

import pytest
import torch

from fairseq_clusterformer.answers import TYPES
from fairseq_clusterformer.data.qa import QAData
from fairseq_clusterformer.metrics.answers import exact_match, f1
from tests.cli.in_process import (
    QUESTIONS,
    load_model,
    train,
    validate,
)

TASK = "--task clusterformer_qa --valid-subset valid"
SCORES = ("em", "f1", "long_f1", "answerable_accuracy")


class TestTrain:
    def test_what_is_cut_is_told(self, qa_data, tmp_path, caplog):
        line = f"{QUESTIONS} --max-positions 30 --max-positions-inference 45"
        with caplog.at_level("INFO", "fairseq_clusterformer"):
            run = train(qa_data, f"{line} --max-question-positions 5", tmp_path)
        told = " ".join(record.getMessage() for record in caplog.records)
        cut = r"[1-9]\d* documents cut, [1-9]\d* answers lost by that, 20 questions cut"
        assert re.search(
            rf"train, 20 questions: {cut} \(--max-positions, --max-question-posi", told
        )
        longer = sum(size > 45 for size in QAData(qa_data, "valid").sizes)
        assert f"valid, 20 questions: {longer} documents cut" in told
        assert max(update["ntokens"] for update in run.updates) <= 4 * 30
        # all questions are scored, those whose answers are lost as well
        assert sum(log["scored"] for log in run.valid[-5:]) == 20


class TestValidate:
    def scores(self, checkpoint: Path, folder: Path, **options: int) -> dict[str, float]:
        """One question at a time, every span in a loop."""
        model, task = load_model(checkpoint, folder, **options)
        dataset = task.load_dataset("valid")
        data = dataset.data
        sums = dict.fromkeys(("em", "f1", "answerable_accuracy"), 0.0)
        right = found = gold = 0
        for index, example in enumerate(data):
            inputs = dataset.collater([dataset[index]])["net_input"]
            with torch.no_grad():
                logits, _ = model(**inputs)
            start, end, paragraph, types = (x[0].tolist() for x in logits[:4])
            likeliest = TYPES[types.index(max(types))]
            spans = [
                (start[i] + end[j], i, j + 1)
                for i in range(len(start))
                for j in range(i, min(i + 30, len(end)))
                if start[i] + end[j] > -math.inf
                and not any(i < head <= j for head in example.paragraph_starts)
            ]
            document = data.document(index)
            text = document.answer(*max(spans)[1:]).text if likeliest == "short" else likeliest
            text = "" if likeliest in ("long", "none") else text
            texts = data.texts(index)["texts"] or [""]
            sums["em"] += max(exact_match(text, of) for of in texts)
            sums["f1"] += max(f1(text, of) if of else float(not text) for of in texts)
            sums["answerable_accuracy"] += (likeliest != "none") == example.answerable
            long = example.paragraph_starts.tolist().index(paragraph.index(max(paragraph)))
            gold += len(example.long_answers) > 0
            found += likeliest != "none"
            right += likeliest != "none" and long in example.long_answers.tolist()
        precision, recall = right / found, right / gold
        means = {name: 100 * value / len(data) for name, value in sums.items()}
        return means | {"long_f1": 100 * 2 * precision * recall / (precision + recall)}

    def test_scores(self, qa_data, qa_reader):
        printed = validate(qa_data, qa_reader, TASK, "--batch-size", 7)
        expected = self.scores(qa_reader, qa_data)
        assert all(5 < value < 95 for value in expected.values())
        found = {name: printed[name] for name in SCORES}
        assert found == pytest.approx(expected, abs=0.0051)

    def test_answers_that_are_kept_secret(self, qa_data, qa_reader):
        printed = validate(qa_data, qa_reader, f"{TASK} --valid-subset test", "--batch-size", 6)
        assert not printed.keys() & {*SCORES, "span_loss", "type_loss"}
