"""The label mask of a chat: what the model is trained to write. 15 minutes.

A conversation is one row of tokens. The model should learn to write the answers of the assistant,
but not the questions of the user. So the labels are the ids of the answers, and -100 everywhere
else. The loss ignores every label of -100.

    <|bos|><|im_start|>user⏎Hi!<|im_end|>⏎<|im_start|>assistant⏎Hello!<|im_end|>⏎
                                                                ~~~~~~~~~~~~~~~~  trained

    begin      An answer begins after its header, <|im_start|>assistant⏎ (several ids). A program
               writes the header, so the model need not learn it.
    end        It ends with <|im_end|>, which is trained. Without it a model would never stop.
               The line end after <|im_end|> is not trained.
    cut off    A long conversation may end in the middle of an answer. That part is trained.

There may be any number of answers, and all of them count. A user's turn ends with <|im_end|> too.
A user may write "assistant" and a line end. Without <|im_start|> before it, that is no header.

An example with these ids:  0 <|bos|>  1 <|im_start|>  2 <|im_end|>  3 ⏎  4 user  5 assistant
6 Hi!  7 Hel  8 lo!  The header is [1, 5, 3].

    ids        0     1     4     3     6     2     3     1     5     3     7     8     2     3
    labels  -100  -100  -100  -100  -100  -100  -100  -100  -100  -100     7     8     2  -100

Put each label at the place of its own token. The loss shifts the labels later, because each token
predicts the next one.

The same in Headlight: `encode_conversations` in data/chat.py. It marks the answers while it writes
a conversation, so it need not search for them.
"""

from __future__ import annotations

IGNORED = -100


def label_mask(ids: list[int], header: list[int], end: int) -> list[int]:
    """Return labels as long as ids: the id where the assistant writes, else IGNORED.

    header: the ids of <|im_start|>assistant⏎. end: the id of <|im_end|>.
    """
    # <solution>
    labels = [IGNORED] * len(ids)
    is_answer = False
    for i, token in enumerate(ids):
        if is_answer:
            labels[i] = token
            is_answer = token != end
        else:
            is_answer = ids[max(0, i + 1 - len(header)) : i + 1] == header  # the end of a header
    return labels
    # </solution>
