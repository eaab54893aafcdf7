"""Prompts to play to a pool, from a die that always falls the same way: a chunk is a number, a request its chunks."""

import random
from collections.abc import Iterator
from itertools import count


def chat(*, num_requests: int, live: int, one_off_share: float, seed: int = 1) -> Iterator[tuple[int, ...]]:
    """Conversations behind one system prompt, each turn the whole of it and a bit more, between prompts that come once.

    Args:
        num_requests: how many prompts.
        live: conversations under way at a time; one that ends, after six turns on average, makes way for another.
        one_off_share: of the prompts, those that come once.
        seed: of the die.
    """
    dice, fresh = random.Random(seed), count(1)

    def some(low: int, high: int) -> tuple[int, ...]:
        return tuple(next(fresh) for _ in range(dice.randint(low, high)))

    conversations = [(0, *some(3, 12)) for _ in range(live)]
    for _ in range(num_requests):
        if dice.random() < one_off_share:
            yield (0, *some(5, 40))
            continue
        i = dice.randrange(live)
        yield conversations[i]
        ends = dice.random() < 1 / 6
        conversations[i] = (0, *some(3, 12)) if ends else (*conversations[i], *some(1, 3))


def loop(*, num_requests: int, length: int) -> Iterator[tuple[int, ...]]:
    """Prompts of one chunk, each after all the others again."""
    yield from ((i % length,) for i in range(num_requests))


def zipf(*, num_requests: int, universe: int, seed: int = 1) -> Iterator[tuple[int, ...]]:
    """Prompts of one chunk; the n-th most popular comes a n-th as often as the first."""
    dice = random.Random(seed)
    chosen = dice.choices(range(universe), [1 / (n + 1) for n in range(universe)], k=num_requests)
    yield from ((chunk,) for chunk in chosen)


def scan_beside_hot(*, num_requests: int, hot: int, scan_share: float, seed: int = 1) -> Iterator[tuple[int, ...]]:
    """Prompts of one chunk: some that come again and again, beside some that come once."""
    dice, fresh = random.Random(seed), count(hot)
    for _ in range(num_requests):
        yield (next(fresh) if dice.random() < scan_share else dice.randrange(hot),)


def moving(*, num_requests: int, window: int, seed: int = 1) -> Iterator[tuple[int, ...]]:
    """Prompts of one chunk from a window that moves on: what was popular never comes back."""
    dice = random.Random(seed)
    yield from ((i // 4 + dice.randrange(window),) for i in range(num_requests))
