"""What `check` says after a wrong answer: "notebook.exercise" -> a hint."""

HINTS = {
    "01.1": "Which words may the first one look at? Its shares sum to 1.",
    "01.2": "The products are in the right proportion to each other; what is each row's sum, and what should it be?",
    "01.3": "A product of two such numbers has a standard deviation of 3 · 3. A sum of 64 of them …",
    "02.1": "A quarter turn makes (1, 0) of … (0, 1), and (-1, 0) of (0, 1). Does yours?",
    "02.2": "Rules that widen a mask combine with |, not with &.",
    "02.3": "It has learned to repeat, with great certainty, what it looks at.",
    "03.1": "Neighbours share: how many query heads read one key head?",
    "03.2": "A token leaves a key *and* a value.",
    "03.3": "2 layers of keys and values in 16 bits: 8 bytes for every number of one head. Look at the column of 256.",
    "04.1": "Look for the largest number in the map `previous token`; its row is the layer.",
    "04.2": "It is a head of a lower layer: what must a token know about its neighbour?",
    "04.3": "How much copying is left when the first head is gone?",
    "05.1": "The first step in `helper` with half of helper[last.step].",
    "05.2": "The loss is -ln p, and p is 1 / vocab_size.",
    "06.1": "The halves have subtracted different largest scores; bring both to the larger one first.",
    "06.2": "One matrix for every layer, every row of the batch and every head.",
    "06.3": "The first new token needs 10 tokens read, the second 11, … With a cache every token is read once.",
    "07.1": "How does the model learn where to stop? See the chat template in docs/data_formats.md.",
    "07.2": "weights[layer, head, looked.first, word_at].sum() is what one head gives to the word.",
}
