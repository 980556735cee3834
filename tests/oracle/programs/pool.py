"""Shares its work among processes of the standard library's pool, and none of them is a rank."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def loss_of(lr: float) -> float:
    return (3 * (1 - lr) ** 5) ** 2


if __name__ == "__main__":
    rates = (0.1, 0.2, 0.3, 0.4)
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(2, mp_context=get_context(method)) as pool:
            losses = list(pool.map(loss_of, rates))
        with open(f"{method}.csv", "w") as rows:
            rows.writelines(f"{lr},{loss:.6f}\n" for lr, loss in zip(rates, losses, strict=True))
    print(f"rank 0 of 1 loss {min(losses):.6f}")
