"""A paged key-value cache: many sequences share one memory, and equal beginnings share its pages.

All rows of a dynamic cache (kv_cache.py) begin and end together. In a server, sequences come and
go. So the memory is cut into blocks of `block_size` tokens, in every layer alike, and a sequence
has a *table*: the numbers of its blocks (PagedAttention, Kwon et al. 2023, arXiv 2309.06180).

    memory     | 0 | 1 | 2 | 3 | 4 | 5 | …        a block: keys and values of 4 tokens
    table of "the fox saw a red ball by the"      2, 0     (4 + 4 tokens)
    table of "the fox saw a blue kite"            2, 5     (4 + 2 tokens): both share block 2

A full block never changes, so it may be shared. Its key is a digest of all tokens up to its end.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model.config import ModelConfig
from model.kv_cache import KVCache


class OutOfBlocks(RuntimeError):
    """There are not enough free blocks. Nothing was changed."""


@dataclass
class Table:
    """The blocks of one sequence."""

    # the tokens that were read, or are about to be
    token_ids: list[int]
    blocks: list[int]
    # (room,): the place of each token in the memory of a layer
    slots: Tensor
    # the number of tokens that were read
    length: int = 0
    # the keys of the full blocks
    keys: list[bytes] = field(default_factory=list)
    # blocks are shared among tables with an equal mark only
    apart: bytes = b""
    # layer of linear attention -> what it keeps of all tokens, each (1, …)
    states: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)


class PagedCache:
    """Keys and values of many sequences: `begin` one, read tokens in a `PagedView`, then `free` it.

    blocks: their number; block_size: tokens in each; like: a tensor of the model.
    """

    def __init__(self, config: ModelConfig, blocks: int, like: Tensor, block_size: int = 16):
        self.block_size = block_size
        self.layers = []
        for _ in range(config.num_hidden_layers):
            shapes = [(blocks * block_size, heads, size) for heads, size in config.cache_shapes]
            self.layers.append([like.new_zeros(shape) for shape in shapes])
        # linear attention keeps no state of a shared beginning
        self.shares = not any(config.is_linear)
        # the number of sequences that use each block
        self.users = [0] * blocks
        self.shared: dict[bytes, int] = {}  # key -> full block
        # block without users -> its key, if it is full. The longest unused block is first; until
        # its memory is taken, a new sequence may share it.
        self.unused: OrderedDict[int, bytes | None] = OrderedDict.fromkeys(range(blocks))

    @property
    def free_blocks(self) -> int:
        return len(self.unused)

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for this many tokens, rounded up."""
        return -(-tokens // self.block_size)

    def begin(
        self, token_ids: Sequence[int], room: int, share: bool = True, apart: bytes = b""
    ) -> Table:
        """Return a table with blocks for `room` tokens.

        Full blocks with the same beginning and the same `apart` are shared, and need not be read
        again; with share=False none are. Raises OutOfBlocks.
        """
        # 1. shared blocks; at least one token is left to read, for its logits
        keys: list[bytes] = []
        blocks: list[int] = []
        while share and self.shares and (len(keys) + 1) * self.block_size < len(token_ids):
            key = self._next_key(keys, token_ids, apart)
            if key not in self.shared:
                break
            keys.append(key)
            blocks.append(self.shared[key])
        # 2. raise before anything is changed; blocks to be shared cannot be taken as well
        needed = self.blocks_for(room) - len(blocks)
        if needed > len(self.unused) - sum(block in self.unused for block in blocks):
            raise OutOfBlocks(f"{needed} blocks are needed, and {len(self.unused)} are free")
        # 3. the others, from the longest unused on, whose content is then lost
        for block in blocks:
            self.unused.pop(block, None)
        for _ in range(needed):
            block, old_key = self.unused.popitem(last=False)
            if old_key is not None:
                self.shared.pop(old_key, None)
            blocks.append(block)
        for block in blocks:
            self.users[block] += 1
        device = self.layers[0][0].device
        starts = torch.tensor(blocks, device=device)[:, None] * self.block_size
        slots = starts + torch.arange(self.block_size, device=device)  # (blocks, block_size)
        length = len(keys) * self.block_size
        return Table(list(token_ids), blocks, slots.flatten(), length, keys, apart)

    def free(self, table: Table) -> None:
        """End a sequence. Its full blocks can still be shared until another sequence takes them."""
        pairs = list(zip_longest(table.blocks, table.keys))
        for block, key in reversed(pairs):  # beginnings are shared most often: taken last
            self.users[block] -= 1
            if not self.users[block]:
                is_shared = key is not None and self.shared.get(key) == block
                self.unused[block] = key if is_shared else None
                self.unused.move_to_end(block, last=is_shared)
        table.blocks = []
        table.keys = []
        table.length = 0

    def read(self, table: Table, count: int) -> None:
        """Count `count` more tokens as read. Blocks that are full now may be shared."""
        table.length += count
        while len(table.keys) < table.length // self.block_size:
            key = self._next_key(table.keys, table.token_ids, table.apart)
            self.shared.setdefault(key, table.blocks[len(table.keys)])
            table.keys.append(key)

    def _next_key(self, keys: list[bytes], token_ids: Sequence[int], apart: bytes) -> bytes:
        """Return the key of the block that follows the blocks with these keys."""
        # each digest contains the one before, and so all tokens from the beginning
        start = len(keys) * self.block_size
        tokens = array("q", token_ids[start : start + self.block_size])
        return hashlib.sha256((keys[-1] if keys else apart) + tokens.tobytes()).digest()


class PagedView(KVCache):
    """Some sequences as rows of one forward pass, which reads the next `count` tokens of each.

    Give it to the model with its attention_mask and position_ids; then call `PagedCache.read`.
    """

    def __init__(self, cache: PagedCache, tables: Sequence[Table], count: int):
        super().__init__()  # without windows: blocks stay whole, and the mask applies the window
        self.memory = cache.layers
        # rows end together: shorter ones have padding on the left
        self._length = max(table.length for table in tables)
        rows = [table.slots[: table.length + count] for table in tables]
        self.seen = pad_sequence(rows, batch_first=True, padding_side="left")  # (B, S)
        self.written = self.seen[:, -count:]  # (B, count): the slots of the new tokens
        device = self.seen.device
        width = self.seen.shape[1]
        lengths = torch.tensor([table.length for table in tables], device=device)[:, None]
        self.position_ids = lengths + torch.arange(count, device=device)  # (B, count)
        # (B, S), False = padding; None = there is none
        mask = torch.arange(width, device=device) >= self._length - lengths
        self.attention_mask = mask if width > min(map(len, rows)) else None

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (B, heads, count, D); return those of every row (B, heads, S, D)."""
        keys, values = self.memory[layer]  # (slots, heads, size)
        keys[self.written] = k.transpose(1, 2).to(keys.dtype)  # (B, count, heads, D)
        values[self.written] = v.transpose(1, 2).to(values.dtype)
        # note: this copies all keys and values; a paged kernel would read them in place
        return keys[self.seen].transpose(1, 2), values[self.seen].transpose(1, 2)
