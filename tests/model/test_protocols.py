"""The four lock-free protocols of shared memory, in every execution that C11's model allows.

Each protocol is written down as its accesses and their orders, as the C code has them; where an
order is named, the test shows that a weaker one there breaks the protocol. aarch64.md
says which function each step is.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest
from rc11 import Action, Add, Load, Order, Outcome, Store, Thread, outcomes

Steps = Generator[Action, int, object]
SC: Order = "seq_cst"


def results(threads: list[Thread]) -> set[tuple[object, ...]]:
    """What the threads can return, in executions that have no data race; there is none."""
    found = outcomes(threads)
    races = {one.race for one in found} - {None}
    assert not races, f"data race on {races}"
    return {one.returned for one in found}


def has_race(threads: list[Thread]) -> bool:
    return any(one.race is not None for one in outcomes(threads))


# ---- the model itself, by tests that everybody knows the answer to ----


def test_store_buffering_needs_seq_cst() -> None:
    def thread(mine: str, other: str, store: Order, load: Order) -> Thread:
        def run() -> Steps:
            yield Store(mine, 1, store)
            return (yield Load(other, load))

        return run

    def both(store: Order, load: Order) -> set[tuple[object, ...]]:
        return results([thread("x", "y", store, load), thread("y", "x", store, load)])

    assert both(SC, SC) == {(0, 1), (1, 0), (1, 1)}
    assert (0, 0) in both("release", "acquire")


def test_message_passing_needs_release_and_acquire() -> None:
    def sender(order: Order) -> Thread:
        def run() -> Steps:
            yield Store("data", 1, "plain")
            yield Store("flag", 1, order)
            return None

        return run

    def receiver(order: Order) -> Thread:
        def run() -> Steps:
            if (yield Load("flag", order)):
                return (yield Load("data", "plain"))
            return None

        return run

    assert results([sender("release"), receiver("acquire")]) == {(None, None), (None, 1)}
    assert has_race([sender("relaxed"), receiver("acquire")])
    assert has_race([sender("release"), receiver("relaxed")])


def test_readers_agree_on_the_order_of_seq_cst_stores() -> None:
    def store(place: str, order: Order) -> Thread:
        def run() -> Steps:
            yield Store(place, 1, order)
            return None

        return run

    def load(first: str, second: str, order: Order) -> Thread:
        def run() -> Steps:
            return (yield Load(first, order)), (yield Load(second, order))

        return run

    def disagree(stores: Order, loads: Order) -> bool:
        threads = [store("x", stores), store("y", stores)]
        threads += [load("x", "y", loads), load("y", "x", loads)]
        return (None, None, (1, 0), (1, 0)) in results(threads)

    assert not disagree(SC, SC)
    assert disagree("release", "acquire")


def test_additions_lose_nothing() -> None:
    def add() -> Steps:
        return (yield Add("x", 1, "relaxed"))

    assert results([add, add]) == {(0, 1), (1, 0)}


# ---- 1. the doorbell: no wake-up is lost ----


def doorbell(publish: Order, look: Order, raised: Order, check: Order) -> set[tuple[object, ...]]:
    def writer() -> Steps:
        yield Store("word", 1, publish)
        return (yield Load("sleepers", look)) > 0  # then it wakes by a system call

    def sleeper() -> Steps:
        yield Add("sleepers", 1, raised)
        return (yield Load("word", check)) == 0  # then it sleeps

    return results([writer, sleeper])


LOST = (False, True)  # the writer wakes no thread, and the sleeper sleeps


def test_the_doorbell_loses_no_wake_up() -> None:
    assert LOST not in doorbell(SC, SC, SC, SC)


@pytest.mark.parametrize(
    "orders",
    [
        ("release", SC, SC, SC),
        (SC, "acquire", SC, SC),
        (SC, SC, "acq_rel", SC),
        (SC, SC, SC, "acquire"),
    ],
)
def test_each_order_of_the_doorbell_is_needed(orders: tuple[Order, Order, Order, Order]) -> None:
    assert LOST in doorbell(*orders)


# ---- 2. the notification ring: payload, reuse of an entry, room ----


def ring(entry: Order, take: Order, head: Order, room: Order) -> list[Thread]:
    def sender() -> Steps:
        yield Store("payload", 1, "plain")
        yield Store("entry", 1, entry)
        if (yield Load("head", room)) == 1:  # the receiver has taken it
            yield Store("payload", 2, "plain")
        return None

    def receiver() -> Steps:
        if (yield Load("entry", take)) == 1:
            found = yield Load("payload", "plain")
            yield Store("head", 1, head)
            return found
        return None

    return [sender, receiver]


def test_the_ring_hands_over_and_reuses() -> None:
    assert results(ring(SC, SC, SC, "acquire")) == {(None, None), (None, 1)}


@pytest.mark.parametrize("weak", range(4))
def test_each_order_of_the_ring_is_needed(weak: int) -> None:
    orders: list[Order] = [SC, SC, SC, "acquire"]
    orders[weak] = "relaxed"
    assert has_race(ring(*orders))


def ring_room(head: Order, look: Order, waits: Order, check: Order) -> set[tuple[object, ...]]:
    def receiver() -> Steps:
        yield Store("head", 1, head)
        return (yield Load("producer_waits", look)) > 0  # then it rings

    def sender() -> Steps:
        yield Add("producer_waits", 1, waits)
        return (yield Load("head", check)) == 0  # then it sleeps

    return results([receiver, sender])


def test_a_sender_that_waits_for_room_is_woken() -> None:
    assert LOST not in ring_room(SC, SC, SC, SC)
    assert LOST in ring_room("release", SC, SC, SC)
    assert LOST in ring_room(SC, SC, SC, "acquire")


# ---- 3. the board: ticks, and members that stop ----


def ticks(members: int, store: Order, load: Order) -> list[Thread]:
    def member(rank: int) -> Thread:
        def run() -> Steps:
            yield Store(f"stage{rank}", 1, "plain")
            yield Store(f"tick{rank}", 1, store)
            has_all = True
            for other in range(members):
                if other != rank:
                    has_all = has_all and (yield Load(f"tick{other}", load)) == 1
            for other in range(members):
                if has_all and other != rank:
                    yield Load(f"stage{other}", "plain")
            return has_all

        return run

    return [member(rank) for rank in range(members)]


@pytest.mark.parametrize("members", [2, 3])
def test_the_last_member_sees_that_all_have_come(members: int) -> None:
    """And rings; each member that sees all may read what the others staged."""
    assert (False,) * members not in results(ticks(members, SC, SC))


def test_each_order_of_a_tick_is_needed() -> None:
    assert (False, False) in results(ticks(2, "release", "acquire"))  # and no member rings
    assert has_race(ticks(2, "relaxed", SC))
    assert has_race(ticks(2, SC, "relaxed"))


def stopping(busy: Order, is_stopped: Order, end: Order, look: Order) -> list[Thread]:
    def worker() -> Steps:
        yield Store("is_busy", 1, busy)
        if (yield Load("has_stopped", is_stopped)) == 0:
            yield Store("tensor", 1, "plain")  # of the other member
        yield Store("is_busy", 0, end)
        return None

    def stopper() -> Steps:
        yield Store("has_stopped", 1, SC)
        if (yield Load("is_busy", look)) == 0:
            yield Store("tensor", 2, "plain")  # its owner has it back
        return None

    return [worker, stopper]


def test_no_member_works_in_memory_that_its_owner_has_back() -> None:
    assert not has_race(stopping(SC, SC, SC, SC))


@pytest.mark.parametrize("weak", range(4))
def test_each_order_of_stopping_is_needed(weak: int) -> None:
    orders: list[Order] = [SC] * 4
    orders[weak] = ["release", "acquire", "relaxed", "acquire"][weak]  # type: ignore[call-overload]
    assert has_race(stopping(*orders))


# ---- 4. the slot: a buffer goes to the receiver's user and comes back ----


def slot(
    arrived: Order = SC, got: Order = SC, released: Order = SC, returned: Order = SC
) -> list[Thread]:
    """Users and progress threads of both sides; entries of rings carry data and credit."""

    def sending_user() -> Steps:
        yield Store("buffer", 1, "plain")
        yield Store("data", 1, SC)
        if (yield Load("returned", returned)) == 1:
            yield Store("buffer", 2, "plain")
        return None

    def receiving_thread() -> Steps:
        if (yield Load("data", SC)) == 1:
            yield Store("arrived", 1, arrived)
        return None

    def receiving_user() -> Steps:
        if (yield Load("arrived", got)) == 1:
            found = yield Load("buffer", "plain")
            yield Store("credit", 1, released)
            return found
        return None

    def sending_thread() -> Steps:
        if (yield Load("credit", SC)) == 1:
            yield Store("returned", 1, SC)
        return None

    return [sending_user, receiving_thread, receiving_user, sending_thread]


def test_a_slot_s_buffer_has_one_user_at_a_time() -> None:
    assert {found[2] for found in results(slot())} == {None, 1}


@pytest.mark.parametrize("weak", ["arrived", "got", "released", "returned"])
def test_each_order_of_a_slot_is_needed(weak: str) -> None:
    orders: dict[str, Order] = {weak: "relaxed"}
    assert has_race(slot(**orders))


def test_outcomes_are_told_apart() -> None:
    def one() -> Steps:
        yield Store("x", 1, "plain")
        return None

    def two() -> Steps:
        return (yield Load("x", "relaxed"))

    assert outcomes([one, two]) == {
        Outcome((None, 0), "x"),
        Outcome((None, 1), "x"),
    }
