"""Byte-pair encoding (BPE): where tokens come from. 30 minutes.

A word starts as letters. The most frequent pair of neighbours becomes one token, again and again.
Frequent words end as one token, rare words as a few pieces.

    train    Count all pairs of neighbours in all words, each as often as its word occurs.
             Join the most frequent pair everywhere. This is a merge: add it to the list.
             Count again, and so on.
    encode   Split a word into letters. Among its pairs that are merges, choose the one that was
             learned first, and join it everywhere. Repeat until no pair is a merge.

    A tie    If two pairs are equally frequent, take the one with the smaller ids. Compare
             (id of left, id of right) as Python compares tuples.
    An id    is a place in the vocabulary: first the letters in their given order, then the
             tokens of the merges, in the order of learning. `ids_of` below is given.

An example: letters a, b, c with the ids 0, 1, 2, and the words {"abc": 3, "bc": 2, "ab": 2}.

    count      (a, b) 3 + 2 = 5    (b, c) 3 + 2 = 5        a tie: (0, 1) is smaller than (1, 2)
    merge 1    (a, b), ab has id 3. The words are now  ab c   b c   ab
    count      (ab, c) 3    (b, c) 2
    merge 2    (ab, c), abc has id 4
    encode     "abcb" -> a b c b -> ab c b -> abc b -> the ids 4, 1

a a a has the pair (a, a) twice, and both count. But joining goes from left to right: aa a.
Write `joined` first (one pair in one word). Then use it in `learn_merges` and `encode_word`.

The same in Headlight: `train_tokenizer` in data/tokenizer.py. It calls the library `tokenizers`,
which follows the same rule for ties. The check compares your merges and ids with the library's.
BPE for text: Sennrich et al. 2016, arXiv 1508.07909.
"""

from __future__ import annotations

from itertools import pairwise

Pair = tuple[str, str]


def ids_of(letters: list[str], merges: list[Pair]) -> dict[str, int]:
    """Return the id of each token: first the letters, then the tokens of the merges."""
    return {
        token: i for i, token in enumerate([*letters, *(left + right for left, right in merges)])
    }


def joined(tokens: list[str], pair: Pair) -> list[str]:
    """Join every such pair of a word, from left to right: a a a with (a, a) -> aa a."""
    # <solution>
    result: list[str] = []
    i = 0
    while i < len(tokens):
        if tuple(tokens[i : i + 2]) == pair:
            result.append(tokens[i] + tokens[i + 1])
            i += 2
        else:
            result.append(tokens[i])
            i += 1
    return result
    # </solution>


def learn_merges(words: dict[str, int], letters: list[str], count: int) -> list[Pair]:
    """Learn `count` merges, or fewer if no pair is left. words: word -> how often it occurs."""
    # <solution>
    merges: list[Pair] = []
    splits = {word: list(word) for word in words}
    while len(merges) < count:
        counts: dict[Pair, int] = {}
        for word, tokens in splits.items():
            for pair in pairwise(tokens):
                counts[pair] = counts.get(pair, 0) + words[word]
        if not counts:
            break
        ids = ids_of(letters, merges)
        best = min(counts, key=lambda pair: (-counts[pair], ids[pair[0]], ids[pair[1]]))
        merges.append(best)
        splits = {word: joined(tokens, best) for word, tokens in splits.items()}
    return merges
    # </solution>


def encode_word(word: str, letters: list[str], merges: list[Pair]) -> list[int]:
    """Return the ids of a word."""
    # <solution>
    rank = {pair: i for i, pair in enumerate(merges)}
    tokens = list(word)
    while pairs := [pair for pair in pairwise(tokens) if pair in rank]:
        tokens = joined(tokens, min(pairs, key=rank.__getitem__))
    ids = ids_of(letters, merges)
    return [ids[token] for token in tokens]
    # </solution>
