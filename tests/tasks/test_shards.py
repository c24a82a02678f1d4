"""Data in several folders, joined by ``:``, of which each epoch reads the next."""

import shutil
from pathlib import Path

import pytest
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY, FairseqTask

import fairseq_clusterformer.plugin  # noqa: F401

TASKS = {
    "clusterformer_sentence": "text_data",
    "clusterformer_qa": "qa_data",
    "etc_masked_lm": "sentences",
}


@pytest.fixture
def shards(task: str, tmp_path: Path, request: pytest.FixtureRequest) -> list[Path]:
    """The second one trains on what the first validates on."""
    first, second = request.getfixturevalue(TASKS[task]), tmp_path / "second"
    shutil.copytree(first, second)
    for path in [*second.rglob("train.*")]:
        path.unlink()
    for path in [*second.rglob("valid.*")]:
        path.rename(path.with_name(path.name.replace("valid", "train")))
    return [first, second]


def made(task: str, data: str) -> FairseqTask:
    options = TASK_DATACLASS_REGISTRY[task]()
    options._name, options.data, options.train_subset, options.seed = task, data, "train", 1
    return TASK_REGISTRY[task].setup_task(options)


@pytest.mark.parametrize("task", TASKS)
def test_epochs(task, shards):
    joined = made(task, ":".join(map(str, shards)))
    assert joined.has_sharded_data("train")
    alone = made(task, str(shards[0]))
    sizes = {split: len(alone.load_dataset(split)) for split in ("train", "valid")}
    assert len(joined.load_dataset("valid", epoch=1)) == sizes["valid"]
    found = [len(joined.load_dataset("train", epoch=epoch)) for epoch in (1, 2, 3)]
    assert found == [sizes["train"], sizes["valid"], sizes["train"]]


@pytest.mark.parametrize("task", TASKS)
def test_another_dictionary(task, shards):
    path = next(shards[1].rglob("dict.txt"))
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")
    with pytest.raises(ValueError, match=f"{path} differs from .*; allowed: shards with one"):
        made(task, ":".join(map(str, shards)))
    path.unlink()
    with pytest.raises(ValueError, match=f"{path} is missing"):
        made(task, ":".join(map(str, shards)))
