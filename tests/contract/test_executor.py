"""The contract of an executor, by threads and by simulation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from simulation.executor import SimulatedExecutor
from wal2lake.executor import SYSTEM_EXECUTOR, CancelledError, Event, Executor, Wakeup

Body = Callable[[Executor], object]
MOMENT = 0.02
LONG = 10.0


def by_threads(body: Body) -> object:
    return body(SYSTEM_EXECUTOR)


def simulated(body: Body) -> object:
    """The same for every seed: none may depend on an order that is not promised."""
    return [body_of_seed(body, seed) for seed in range(20)]


def body_of_seed(body: Body, seed: int) -> object:
    executor = SimulatedExecutor(seed)
    return executor.run(lambda: body(executor))


def _later(executor: Executor, event: Event | Wakeup) -> None:
    executor.sleep(MOMENT)
    event.set()


def _fail() -> None:
    raise FileNotFoundError("as it should")


@pytest.fixture(params=[by_threads, simulated])
def run(request: pytest.FixtureRequest) -> Callable[[Body], object]:
    made: Callable[[Body], object] = request.param
    return made


def test_a_set_event_is_seen_by_everybody_who_waits(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        event, seen = executor.event(), executor.queue()
        tasks = [executor.start(f"waits-{n}", lambda: seen.put(event.wait(LONG))) for n in range(3)]
        executor.sleep(MOMENT)
        assert seen.qsize() == 0 and all(task.is_alive() for task in tasks)
        event.set()
        for task in tasks:
            task.join()
        assert [seen.get() for _ in range(3)] == [True] * 3
        assert event.is_set() and event.wait(0)
        event.clear()
        assert not event.is_set()

    run(body)


def test_an_event_that_is_set_and_cleared_at_once_still_ends_a_wait(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        event, seen = executor.event(), executor.queue()
        task = executor.start("waits", lambda: seen.put(event.wait(LONG)))
        executor.sleep(MOMENT)
        event.set()
        event.clear()
        task.join()
        assert seen.get() is True

    run(body)


def test_waiting_for_an_event_ends_after_its_timeout(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        began, day = executor.clock.monotonic(), executor.clock.now()
        assert not executor.event().wait(MOMENT)
        assert executor.clock.monotonic() - began >= MOMENT * 0.9
        assert executor.clock.now() > day

    run(body)


def test_a_lock_is_held_by_one_task_even_while_it_waits(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        lock, inside, most = executor.lock(), [], executor.queue()

        def work() -> None:
            with lock:
                inside.append(1)
                executor.sleep(MOMENT / 10)
                most.put(len(inside))
                inside.pop()

        tasks = [executor.start(f"works-{n}", work) for n in range(4)]
        for task in tasks:
            task.join()
        assert [most.get() for _ in range(4)] == [1] * 4

    run(body)


def test_a_condition_is_waited_for_without_its_lock(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        condition, state = executor.condition(), {"room": 0}

        def make_room() -> None:
            for _ in range(3):
                with condition, condition:
                    state["room"] += 1
                    condition.notify_all()
                executor.sleep(MOMENT / 10)

        task = executor.start("makes-room", make_room)
        with condition:
            assert condition.wait_for(lambda: state["room"] == 3, LONG)
        task.join()
        with condition:
            assert not condition.wait_for(lambda: state["room"] == 4, MOMENT)

    run(body)


def test_a_task_is_alive_until_it_has_ended_and_joining_may_time_out(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        go_on = executor.event()
        task = executor.start("stays", lambda: go_on.wait(LONG), daemon=True)
        task.join(MOMENT)
        assert task.is_alive()
        go_on.set()
        task.join()
        assert not task.is_alive()

    run(body)


def test_a_queue_keeps_the_order_and_is_waited_for(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        numbers, taken = executor.queue(), []

        def take() -> None:
            while (number := numbers.get()) is not None:
                taken.append(number)

        task = executor.start("takes", take)
        for number in range(50):
            numbers.put(number)
            if number % 7 == 0:
                executor.sleep(0)
        numbers.put(None)
        task.join()
        assert taken == list(range(50)) and numbers.qsize() == 0

    run(body)


def test_a_pool_with_one_worker_does_what_it_is_given_in_order(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        pool = executor.pool("one", 1)
        done: list[int] = []
        futures = [pool.submit(done.append, number) for number in range(20)]
        pool.shutdown()
        assert done == list(range(20)) and all(future.done() for future in futures)
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(done.append, 1)

    run(body)


def test_a_pool_does_as_much_at_once_as_it_has_workers(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        pool, lock, under_way, most = executor.pool("three", 3), executor.lock(), [0], [0]

        def work() -> None:
            with lock:
                under_way[0] += 1
                most[0] = max(most[0], under_way[0])
            executor.sleep(MOMENT)
            with lock:
                under_way[0] -= 1

        futures = [pool.submit(work) for _ in range(9)]
        for future in futures:
            future.result(LONG)
        pool.shutdown()
        assert most[0] == 3

    run(body)


def test_the_exception_of_work_comes_with_its_result_and_the_pool_goes_on(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        pool = executor.pool("fails", 1)
        failed = pool.submit(_fail)
        with pytest.raises(FileNotFoundError):
            failed.result(LONG)
        assert isinstance(failed.exception(), FileNotFoundError)
        assert pool.submit(lambda a, b: a + b, 1, b=2).result(LONG) == 3
        pool.shutdown()

    run(body)


def test_work_may_wait_for_work_of_another_pool(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        makes, uses = executor.pool("makes", 1), executor.pool("uses", 1)

        def five() -> int:
            executor.sleep(MOMENT)
            return 5

        slow = makes.submit(five)
        assert uses.submit(lambda: slow.result() * 2).result(LONG) == 10
        for pool in (uses, makes):
            pool.shutdown()

    run(body)


def test_work_that_has_not_begun_is_cancelled_and_says_so_to_whoever_asked(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        pool, go_on, begun, told = executor.pool("one", 1), executor.event(), executor.event(), executor.queue()

        def stay() -> bool:
            begun.set()
            return go_on.wait(LONG)

        first = pool.submit(stay)
        second, third = pool.submit(int), pool.submit(int)
        for future in (first, second, third):
            future.add_done_callback(lambda future: told.put(future.cancelled()))
        begun.wait(LONG)
        assert not first.cancel() and second.cancel() and told.get() is True
        executor.start("lets-it-end", partial(_later, executor, go_on))
        pool.shutdown(cancel_futures=True)
        assert third.cancelled() and first.result() is True
        assert {told.get(), told.get()} == {True, False}
        with pytest.raises(CancelledError):
            third.result()

    run(body)


def test_waiting_for_several_futures_ends_with_the_last_or_with_the_timeout(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        pool, go_on = executor.pool("two", 2), executor.event()
        soon, late = pool.submit(executor.sleep, MOMENT / 10), pool.submit(go_on.wait, LONG)
        assert executor.wait([soon, late], MOMENT) == {late}
        go_on.set()
        assert executor.wait([soon, late], LONG) == set()
        assert executor.wait([], LONG) == set()
        pool.shutdown()

    run(body)


def test_a_wake_up_stays_readable_until_it_is_cleared(run: Callable[[Body], object]) -> None:
    def body(executor: Executor) -> None:
        one, other = executor.wakeup(), executor.wakeup()
        both = (one.fileno(), other.fileno())
        assert not executor.wait_readable(both, MOMENT)
        task = executor.start("wakes", partial(_later, executor, other))
        assert executor.wait_readable(both, LONG)
        task.join()
        other.set()
        assert executor.wait_readable(both, 0) and not executor.wait_readable([one.fileno()], 0)
        other.clear()
        assert not executor.wait_readable(both, 0)
        for each in (one, other):
            each.close()

    run(body)
