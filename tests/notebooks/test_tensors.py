"""The checks of notebook 00a accept right answers and refuse learners' mistakes, each with a hint."""

from __future__ import annotations

import pytest
import torch

from configs.command import InputError
from notebooks import start
from notebooks.checks import tensors

ARANGE = "torch.arange(T)"
RIGHT = {
    "00a.1": [
        f"lambda T: {ARANGE}[:, None] - {ARANGE}",
        f"lambda T: {ARANGE}.unsqueeze(1) - {ARANGE}.unsqueeze(0)",
        f"lambda T: torch.outer({ARANGE}, torch.ones(T, dtype=torch.long)) - {ARANGE}",
        f"lambda T: {ARANGE}.float().view(T, 1) - {ARANGE}",
    ],
    "00a.2": [
        "lambda x, H: x.unflatten(-1, (H, -1)).transpose(1, 2)",
        "lambda x, H: x.view(*x.shape[:2], H, -1).permute(0, 2, 1, 3)",
        "lambda x, H: torch.stack(x.chunk(H, dim=-1), dim=1)",
        "lambda x, H: torch.einsum('bthd->bhtd', x.reshape(x.shape[0], x.shape[1], H, x.shape[2] // H))",
    ],
    "00a.3": [
        "lambda table, ids: table.gather(-1, ids[..., None])[..., 0]",
        "lambda table, ids: torch.gather(table, ids.ndim, ids.unsqueeze(-1)).squeeze(-1)",
        "lambda table, ids: torch.take_along_dim(table, ids[..., None], -1)[..., 0]",
        "lambda table, ids: (table * torch.nn.functional.one_hot(ids, table.shape[-1])).sum(-1)",
    ],
    "00a.4": [
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1]).index_add_(0, ids, rows)",
        "lambda rows, ids, V: torch.nn.functional.one_hot(ids, V).T.to(rows.dtype) @ rows",
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1]).index_put_((ids,), rows, accumulate=True)",
        "lambda rows, ids, V: torch.stack([rows[ids == v].sum(0) for v in range(V)])",
    ],
}
WRONG = {
    "00a.1": [
        f"lambda T: {ARANGE} - {ARANGE}",
        f"lambda T: {ARANGE} - {ARANGE}[:, None]",
        f"lambda T: {ARANGE}[:, None] - {ARANGE}[:, None]",
        f"lambda T: {ARANGE}[:, None] + {ARANGE}",
        f"lambda T: {ARANGE}[:, None] * {ARANGE}",
        f"lambda T: ({ARANGE}[:, None] - {ARANGE}).abs()",
        f"lambda T: ({ARANGE}[:, None] - {ARANGE}).clamp(min=0)",
        f"lambda T: {ARANGE}[:, None] >= {ARANGE}",
        f"lambda T: {ARANGE}[:, None]",
        f"lambda T: {ARANGE}[:, None] - torch.arange(1, T + 1)",
        "lambda T: torch.arange(3)[:, None] - torch.arange(3)",
        f"lambda T: ({ARANGE}[:, None] - {ARANGE}).tolist()",
        f"lambda T: print({ARANGE}[:, None] - {ARANGE})",
    ],
    "00a.2": [
        "lambda x, H: x.view(x.shape[0], H, x.shape[1], -1)",
        "lambda x, H: x.unflatten(-1, (H, -1))",
        "lambda x, H: x.unflatten(-1, (-1, H))",
        "lambda x, H: x.unflatten(-1, (-1, H)).transpose(1, 2)",
        "lambda x, H: x.unflatten(-1, (H, -1)).transpose(2, 3)",
        "lambda x, H: x.unflatten(-1, (H, -1)).transpose(0, 1)",
        "lambda x, H: x.unflatten(-1, (-1, H)).permute(0, 2, 1, 3)",
        "lambda x, H: x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2)",
        "lambda x, H: x.transpose(1, 2).unflatten(1, (H, -1))",
        "lambda x, H: x.unflatten(-1, (2, -1)).transpose(1, 2)",
        "lambda x, H: x.unflatten(1, (H, -1)).transpose(1, 2)",
        "lambda x, H: x.chunk(H, dim=-1)",
        "lambda x, H: torch.stack(x.chunk(H, dim=-1))",
        "lambda x, H: x.transpose(1, 2).reshape(x.shape[0], H, x.shape[1], -1)",
    ],
    "00a.3": [
        "lambda table, ids: table[..., ids]",
        "lambda table, ids: table[ids]",
        "lambda table, ids: table.gather(-1, ids)",
        "lambda table, ids: table.gather(-1, ids[..., None])",
        "lambda table, ids: table.gather(0, ids[..., None])[..., 0]",
        "lambda table, ids: table[torch.arange(len(ids)), ids]",
        "lambda table, ids: table.gather(-1, ids[..., None]).sum()",
        "lambda table, ids: table.gather(-1, ids[None])[0]",
        "lambda table, ids: table.amax(-1)",
        "lambda table, ids: table.argmax(-1)",
        "lambda table, ids: table.gather(1, ids[:, None])[:, 0]",
        "lambda table, ids: [row[i] for row, i in zip(table, ids)]",
        "lambda table, ids: ids",
    ],
    "00a.4": [
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1]).index_copy_(0, ids, rows)",
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1]).index_put_((ids,), rows)",
        "lambda rows, ids, V: rows[ids]",
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1])",
        "lambda rows, ids, V: torch.ones(V, rows.shape[1]).index_add_(0, ids, rows)",
        "lambda rows, ids, V: torch.zeros(len(ids), rows.shape[1]).index_add_(0, ids, rows)",
        "lambda rows, ids, V: rows.index_add_(0, ids, rows)",
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1]).index_add_(1, ids, rows)",
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1]).index_add_(0, ids, rows).T",
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1]).index_add_(0, ids, rows, alpha=-1)",
        "lambda rows, ids, V: torch.zeros(V, rows.shape[1]).index_add_(0, ids.unique(), rows[: len(ids.unique())])",
        "lambda rows, ids, V: torch.bincount(ids, minlength=V)",
        "lambda rows, ids, V: torch.stack([rows[ids == v].mean(0) for v in range(V)])",
        "lambda rows, ids, V: torch.nn.functional.one_hot(ids, V).float() @ rows",
    ],
}  # fmt: skip
JUDGES = {"00a.1": tensors.distances, "00a.2": tensors.heads, "00a.3": tensors.pick, "00a.4": tensors.add_rows}
every_exercise = pytest.mark.parametrize("number", JUDGES)


@every_exercise
def test_at_least_twelve_plausible_wrong_answers_are_refused_with_one_sentence_and_a_hint(number):
    assert len(WRONG[number]) >= 12
    hints = set()
    for source in WRONG[number]:
        with pytest.raises(InputError) as refused:
            start.check(number, eval(source), JUDGES[number])
        sentence, hint = str(refused.value).split("\n")
        assert sentence.startswith("Not yet. "), source
        assert len(sentence) < 400, source
        hints.add(hint.removeprefix("Hint: "))
    assert hints == set(start.HINTS[number].values()), "each hint is given to a mistake of the list"


@every_exercise
def test_right_answers_are_accepted_whatever_their_form(number, capsys):
    for source in RIGHT[number]:
        start.check(number, eval(source), JUDGES[number])
        assert capsys.readouterr().out == "Right.\n", source


def test_the_first_function_is_used_until_there_is_an_answer(capsys):
    ours = start.check("00a.1", None, tensors.distances, ours=tensors.distance_table)
    assert torch.equal(ours(3) >= 0, torch.ones(3, 3, dtype=torch.bool).tril())
    assert capsys.readouterr().out.startswith("No answer yet")
