"""Choosing what to keep: the solver against brute force, and prices that are known by hand."""

from __future__ import annotations

import itertools
import random

import pytest

from graph_analysis.errors import ArgumentError
from graph_analysis.keep import Chain, Unit, Way, least_peak, simulate, solve


def generated(seed: int, most_units: int, *, has_link: bool) -> Chain:
    """Chains with small numbers, so that ties and exact fits occur."""
    chance = random.Random(seed)
    units = []
    for index in range(chance.randint(1, most_units)):
        saved = chance.randint(0, 12)
        ways = [Way("keep", saved, saved + chance.randint(0, 4), saved + chance.randint(0, 9))]
        if chance.random() < 0.8:
            held = chance.randint(-1, saved)
            ways.append(
                Way("recompute", held, saved, saved + chance.randint(0, 12), chance.randint(0, 9))
            )
        if has_link:
            link = chance.randint(0, 9)
            ways.append(Way("peer", chance.randint(0, 2), saved, saved + 2, 0, link, link))
        units.append(Unit(str(index), chance.randint(0, 9), chance.randint(0, 9), tuple(ways)))
    return Chain(chance.randint(0, 20), chance.randint(0, 5), chance.randint(0, 40), tuple(units))


def all_choices(chain: Chain) -> list[tuple[str, ...]]:
    return list(itertools.product(*([way.name for way in unit.ways] for unit in chain.units)))


@pytest.mark.parametrize("has_link", [False, True])
def test_the_optimum_is_that_of_brute_force(has_link: bool) -> None:
    refused = 0
    for seed in range(300):
        chain = generated(seed, 6 if has_link else 8, has_link=has_link)
        outcomes = [simulate(chain, choice) for choice in all_choices(chain)]
        peaks = sorted({one.peak_bytes for one in outcomes})
        for budget in {peaks[0] - 1, peaks[0], peaks[len(peaks) // 2], peaks[-1]}:
            fitting = [one for one in outcomes if one.peak_bytes <= budget]
            choice = solve(chain, budget)
            if choice is None:
                assert not fitting
                refused += 1
                continue
            mine = simulate(chain, choice)
            assert mine.peak_bytes <= budget
            assert mine.added_ns + mine.exposed_ns == min(
                one.added_ns + one.exposed_ns for one in fitting
            )
        least, choice = least_peak(chain)
        assert least == peaks[0] == simulate(chain, choice).peak_bytes
    assert refused > 100


def even(units: int, *ways: Way, forward_ns: int = 10, backward_ns: int = 20) -> Chain:
    made = tuple(Unit(str(i), forward_ns, backward_ns, ways) for i in range(units))
    return Chain(100, 0, 100, made)


KEEP = Way("keep", 10, 10, 10)
RECOMPUTE = Way("recompute", 1, 10, 20, added_ns=10)


def test_as_few_units_recompute_as_the_budget_needs() -> None:
    chain = even(8, KEEP, RECOMPUTE)
    for recomputed in range(7):
        budget = 100 + 10 * (8 - recomputed) + recomputed
        choice = solve(chain, budget)
        assert choice is not None
        assert choice.count("recompute") == recomputed


def test_a_link_that_hides_is_chosen_and_one_that_does_not_is_left() -> None:
    for link_ns, chosen in ((5, "peer"), (200, "recompute")):
        peer = Way("peer", 1, 10, 20, write_ns=link_ns, read_ns=link_ns)
        choice = solve(even(6, KEEP, RECOMPUTE, peer), 130)
        assert choice is not None
        assert set(choice) - {"keep"} == {chosen}


def test_hundred_units_of_several_ways_take_moments() -> None:
    chance = random.Random(1)
    units = []
    for index in range(100):
        saved = chance.randint(10**6, 10**8)
        ways = [Way("keep", saved, saved, saved)]
        for _ in range(7):
            held = chance.randint(10**5, saved)
            ways.append(Way("recompute", held, saved, saved, chance.randint(1, 10**7)))
        units.append(Unit(str(index), 10**6, 2 * 10**6, tuple(ways)))
    chain = Chain(10**8, 0, 10**8, tuple(units))
    whole = simulate(chain, ["keep"] * 100)
    choice = solve(chain, whole.peak_bytes // 2)
    assert choice is not None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Chain(0, 0, 0, (Unit("a", 1, 1, ()),)), "unit 'a' has no way"),
        (
            lambda: Chain(0, 0, 0, (Unit("a", 1, 1, (Way("keep", 1, 1, 1, -1),)),)),
            "way 'keep' has a negative time",
        ),
        (lambda: simulate(even(2, KEEP), ["keep"]), "1 ways for 2 units"),
        (lambda: simulate(even(1, KEEP), ["peer"]), "unit '0' has no way 'peer'"),
    ],
)
def test_what_is_no_chain_is_refused(make: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make()  # type: ignore[operator]
