"""A small text with planted faults, for the data inspection in notebook 11.

The faults are those of real collections: a licence in many files, texts decoded with the wrong
table, one document as large as all others, and test rows that are also in training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from notebooks.checks.compare import same
from storyworld import tell

STORIES = 60
TEST_ROWS = 12
LICENCE = "All stories in this file belong to the house of stories."
REFRAIN = "La la la, the moon is new."
# what becomes of accents and quotation marks, where UTF-8 is read as Windows-1252
BROKEN_MARKS = ("Ã", "â€")
EXAMPLE = (
    ["Free text!\nCats purr.", "Free text!\nA cafÃ©.", "Moo.\nMoo.\nMoo.\nAn open café."],
    ["Cats purr.", "Cats sleep."],
)


def planted_text(seed: int) -> tuple[list[str], list[str]]:
    """Return documents to train on and test rows, with four faults at places that seed decides."""
    rng = Random(seed)
    documents = [tell(seed, index).text for index in range(STORIES)]
    test = [tell(seed, index, "validation").text for index in range(TEST_ROWS)]
    places = rng.sample(range(STORIES), 14)
    # Traps: these are no faults.
    for place in places[:4]:
        documents[place] += " At the café they sang: “C’est la vie!”"
    documents[places[4]] += f"\n{REFRAIN}" * 20  # often, but in one document only
    # 1: one line in every tenth document
    for place in range(rng.randrange(10), STORIES, 10):
        documents[place] = f"{LICENCE}\n{documents[place]}"
    # 2: texts decoded with the wrong table
    for place in places[5:7]:
        documents[place] = f"{documents[place]} The end of the fête.".encode().decode("cp1252")
    for place in places[7:9]:
        documents[place] += " It was Sunday\u2019s soup.".encode().decode("cp1252")
    # 3: one document with as many characters as all others together
    size = sum(map(len, documents))
    large = ""
    index = STORIES
    while len(large) < size:
        large += f"{tell(seed, index).text}\n"
        index += 1
    # 4: test rows that are in training, whole documents or parts of one
    leaked = rng.sample(range(TEST_ROWS), 3)
    documents[places[9]] = f"{LICENCE}\n{test[leaked[0]]}"
    documents[places[10]] = test[leaked[1]]
    documents.insert(rng.randrange(STORIES), f"{large}{test[leaked[2]]}")
    return documents, test


def findings(documents: list[str], test: list[str]) -> dict[str, Any]:
    """Return the four measurements that an inspection should report.

    repeated: the line that is in most documents
    broken:   indices of documents with characters that come from wrong decoding
    largest:  the largest document's share of all characters
    leaked:   indices of test rows that some document contains
    """
    count: Counter[str] = Counter()
    for text in documents:
        count.update(set(text.splitlines()))
    return {
        "repeated": count.most_common(1)[0][0],
        "broken": [i for i, text in enumerate(documents) if is_broken(text)],
        "largest": max(map(len, documents)) / sum(map(len, documents)),
        "leaked": [i for i, row in enumerate(test) if any(row in text for text in documents)],
    }


def is_broken(text: str) -> bool:
    return any(mark in text for mark in BROKEN_MARKS)


def judge(inspect: Callable[[list[str], list[str]], Any]) -> None:
    """Assert that an inspection has these findings, on the example and two planted texts."""
    texts = {"the example": EXAMPLE, "faulty": planted_text(0), "other faulty": planted_text(1)}
    for name, (documents, test) in texts.items():
        call = f"inspect_text({name})"
        found = inspect(documents, test)
        expected = findings(documents, test)
        kind = type(found).__name__
        assert isinstance(found, dict), f"{call} returns a {kind}, and must return a dictionary."
        missed = ", ".join(key for key in expected if found.get(key) is None)
        assert not missed, f"{call} has no finding for: {missed}."
        for key, value in expected.items():
            same(f'{call}["{key}"]', found[key], value)
