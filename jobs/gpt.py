"""A small GPT that learns to add: its text is lines such as 27+58=085, made up on the spot, nothing to download."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from orchestrator.training.data import Data
from orchestrator.training.errors import UserError
from orchestrator.training.options import Options

LETTERS = "0123456789+=\n"
LINE = len("27+58=085\n")


def text(lines: int, seed: int) -> Tensor:
    """Lines of sums as numbers of letters, in one row."""
    pairs = torch.randint(0, 100, (lines, 2), generator=torch.Generator().manual_seed(seed)).tolist()
    written = "".join(f"{a:02}+{b:02}={a + b:03}\n" for a, b in pairs)
    return torch.tensor([LETTERS.index(letter) for letter in written])


def pieces(lines: int, seed: int, context: int) -> tuple[Tensor, Tensor]:
    """Pieces of text (n, context), and the same a letter later: what is to be foretold."""
    letters = text(lines, seed)
    count = (len(letters) - 1) // context
    return letters[: count * context].reshape(count, context), letters[1 : count * context + 1].reshape(count, context)


def data(options: Options) -> Data:
    """Letters of made-up sums: `--option lines=8000` of them, and a tenth for testing."""
    lines, context = int(options.extra.get("lines", 8000)), context_of(options)
    train, test = pieces(lines, 1, context), pieces(lines // 10, 2, context)
    return Data(train=train, test=test, name="sums", unit="pieces of text", tokens=context)


def context_of(options: Options) -> int:
    """How many letters a piece has, `--option context=40`: whole lines."""
    context = int(options.extra.get("context", 4 * LINE))
    if context < LINE or context % LINE:
        raise UserError(f"A piece of {context} letters can't be cut from lines of {LINE}: give a multiple of {LINE}.")
    return context


class Embedding(nn.Module):
    """A vector for each letter plus one for its place."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Embedding(context, width)

    def forward(self, letters: Tensor) -> Tensor:
        return self.letters(letters) + self.places(torch.arange(letters.shape[1], device=letters.device))


class Block(nn.Module):
    """Attention to what came before, then two layers on each place alone; both added to what was there."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        asked, found, said = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.attend(self.norm1(x)).chunk(3, dim=-1)
        )
        heard = F.scaled_dot_product_attention(asked, found, said, is_causal=True)
        x = x + self.dropout(self.join(heard.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.think(self.norm2(x)))


def model(options: Options) -> nn.Sequential:
    """`--option width=64`, layers=3, heads=4, dropout=0; a Sequential of blocks, which fsdp and pipeline can cut."""
    width, layers, heads = (int(options.extra.get(name, default)) for name, default in SHAPE.items())
    dropout = float(options.extra.get("dropout", 0))
    blocks = [Block(width, heads, dropout) for _ in range(layers)]
    for block in blocks:
        nn.init.normal_(block.join.weight, std=0.02 / math.sqrt(2 * layers))
    return nn.Sequential(
        Embedding(width, context_of(options)), *blocks, nn.LayerNorm(width), nn.Linear(width, len(LETTERS))
    )


def plan(_options: Options) -> dict[str, object]:
    """How --tensor-ranks cuts the layers that have most of the weights."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel  # noqa: PLC0415 - slow, seldom needed

    return {"*.think.0": ColwiseParallel(), "*.think.2": RowwiseParallel()}


SHAPE = {"width": 64, "layers": 3, "heads": 4}


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over all letters of the batch."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def metrics(outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """`accuracy` of the sums' own digits, which alone can be foretold; summed over the pieces of text."""
    places = torch.arange(targets.shape[1], device=targets.device) % LINE
    sums = (places >= LINE - 5) & (places < LINE - 2)  # a target is the letter after its place
    right = (outputs.argmax(dim=-1) == targets)[:, sums]
    return {"accuracy": right.double().mean(dim=1).sum()}
