"""What learners write into the exercises on attention: mistakes, and right answers that are written differently."""

WRONG = {
    "softmax": [
        ("(x - x.amax(dim=-1, keepdim=True)).exp()", "x.exp()"),  # overflows
        ("x.amax(dim=-1, keepdim=True)", "x.max()"),  # of the whole tensor: rows far below it vanish
        ("weights.sum(dim=-1, keepdim=True)", "weights.sum()"),
        ("weights.sum(dim=-1, keepdim=True)", "weights.sum(dim=0, keepdim=True)"),
        ("(x - x.amax(dim=-1, keepdim=True)).exp()", "x.sub_(x.amax(dim=-1, keepdim=True)).exp()"),
    ],
}
RIGHT = {
    "softmax": [
        "def softmax(x):\n    y = (x - x.max(-1, keepdim=True).values).exp()\n    return y / y.sum(-1)[..., None]",
    ],
}
