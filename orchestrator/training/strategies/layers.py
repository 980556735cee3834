"""Splits a model into consecutive pieces, for strategies that give each device some of the layers."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from torch import nn

from orchestrator.training.errors import UserError

NEARLY = 1.05  # the largest group may be this many times as large as the smallest possible largest group


def cut(model: nn.Module, parts: int) -> list[nn.Sequential]:
    """Split an nn.Sequential into consecutive pieces with nearly equal numbers of weights. Modules are not copied.

    The children keep their names, so the states of all pieces together are the model's state. Raises UserError if the
    model is not an nn.Sequential or has fewer children than `parts`.
    """
    if not isinstance(model, nn.Sequential):
        raise UserError(
            f"A {type(model).__name__} can't be cut into pieces: for this strategy the task's model() must return an "
            "nn.Sequential, whose children follow one another."
        )
    if len(model) < parts:
        raise UserError(f"The model has {len(model)} child modules, too few for {parts} pieces: start fewer ranks.")
    children = list(model.named_children())
    sizes = [sum(weight.numel() for weight in child.parameters()) for _, child in children]
    ends = balance(sizes, parts)
    return [nn.Sequential(OrderedDict(children[start:end])) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def balance(sizes: Sequence[int], parts: int) -> list[int]:
    """Split `sizes` into `parts` consecutive, non-empty groups, and return the index at which each group ends. The
    largest group is at most NEARLY times as large as necessary.

    Within that limit the last group is as small as possible, because its device also computes the loss.
    """
    total = [0]
    for size in sizes:
        total.append(total[-1] + size)
    # best[end] is (the largest group, the ends) for the children before `end`, in as many groups as rounds so far.
    best: dict[int, tuple[int, list[int]]] = {0: (0, [])}
    for _ in range(parts - 1):
        best = {
            end: min(
                (max(largest, total[end] - total[start]), [*ends, end])
                for start, (largest, ends) in best.items()
                if start < end
            )
            for end in range(min(best) + 1, len(sizes))
        }
    largest_by_start = {start: max(largest, total[-1] - total[start]) for start, (largest, _) in best.items()}
    nearly = NEARLY * min(largest_by_start.values())
    start = max(start for start, largest in largest_by_start.items() if largest <= nearly)
    return [*best[start][1], len(sizes)]


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that are gathered, compiled or recomputed as a unit, which are the children that have weights.

    The items of a ModuleList or ModuleDict count as children.
    """
    for child in model.children():
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from blocks(child)
        elif any(True for _ in child.parameters()):
            yield child
