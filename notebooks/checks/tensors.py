"""Check the lines that readers write in notebook 00a, with integers, so every answer is exact."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from notebooks.checks.attention import random
from notebooks.checks.compare import same, unchanged

Function = Callable[..., Tensor]


def distance_table(T: int) -> Tensor:
    places = torch.arange(T)
    return places[:, None] - places


def distances(function: Function) -> None:
    expected = torch.tensor([[0, -1, -2], [1, 0, -1], [2, 1, 0]])
    same("my_distances(3)", function(3), expected)
    for T in (1, 7):
        same(f"my_distances({T})", function(T), distance_table(T))


def heads(function: Function) -> None:
    x = torch.tensor([[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]])
    expected = torch.tensor([[[[1, 2], [5, 6], [9, 10]], [[3, 4], [7, 8], [11, 12]]]])
    same("my_heads(x, 2) of the example", function(x, 2), expected)
    x = torch.arange(240).view(2, 5, 24)
    for number in (1, 3, 4):
        expected = x.unflatten(-1, (number, -1)).transpose(1, 2)
        same(f"my_heads(x, {number}) of x (2, 5, 24)", function(x, number), expected)


def pick(function: Function) -> None:
    table = torch.tensor([[10, 11, 12], [20, 21, 22]])
    call = "my_pick(table, [2, 0])"
    same(call, function(table, torch.tensor([2, 0])), torch.tensor([12, 20]))
    table = torch.arange(30).view(5, 6)
    ids = torch.tensor([5, 0, 3, 3, 1])
    expected = table[torch.arange(5), ids]
    same("my_pick(table, ids) of a table (5, 6)", function(table, ids), expected)
    texts = torch.stack([table, table + 100])
    expected = torch.stack([expected, expected + 100])
    call = "my_pick(table, ids) of a table (2, 5, 6) and ids (2, 5)"
    same(call, function(texts, ids.expand(2, 5)), expected)


def add_rows(function: Function) -> None:
    rows = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    ids = torch.tensor([2, 0, 2])
    before = rows.clone()
    expected = torch.tensor([[3.0, 4], [0, 0], [6, 8], [0, 0]])
    same("my_add_rows(rows, [2, 0, 2], 4)", function(rows, ids, 4), expected)
    unchanged("my_add_rows(rows, ids, V)", "rows", rows, before)
    rows = random(9, 5)
    ids = torch.tensor([3, 3, 3, 0, 6, 1, 0, 3, 6])
    expected = torch.zeros(7, 5, dtype=torch.float64).index_add_(0, ids, rows.double())
    same("my_add_rows(rows, ids, 7) of rows (9, 5)", function(rows, ids, 7), expected)
