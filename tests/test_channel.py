"""The hand-over between threads: order, bounds, ends, and no work while waiting."""

import threading
import time

import pytest

from fishcli.channel import Channel, ChannelClosedError


def test_items_come_out_in_order_and_close_lets_them_drain():
    channel = Channel(3)
    for item in (1, 2, 3):
        channel.put(item)
    channel.close()
    assert list(channel) == [1, 2, 3]
    with pytest.raises(ChannelClosedError):
        channel.put(4)


def test_a_full_channel_holds_the_producer_back():
    channel = Channel(2)
    done = threading.Event()

    def produce():
        for item in range(5):
            channel.put(item)
        done.set()

    thread = threading.Thread(target=produce)
    thread.start()
    time.sleep(0.05)
    assert len(channel) == 2 and not done.is_set()
    assert [channel.get() for _ in range(5)] == list(range(5))
    thread.join(5)
    assert done.is_set()


@pytest.mark.parametrize("side", ["get", "put"])
def test_failing_wakes_a_waiting_thread_with_the_error(side):
    channel = Channel(1)
    if side == "put":
        channel.put(0)
    caught = []

    def wait():
        try:
            channel.get() if side == "get" else channel.put(1)
        except OSError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.02)
    channel.fail(OSError("disk"))
    thread.join(5)
    assert [str(error) for error in caught] == ["disk"]


def test_get_nowait_tells_empty_from_ended():
    channel = Channel(1)
    assert channel.get_nowait() is None
    channel.put("x")
    assert channel.get_nowait() == "x"
    channel.close()
    with pytest.raises(ChannelClosedError):
        channel.get_nowait()


def test_a_waiting_thread_uses_no_cpu():
    channel = Channel(1)
    used = []

    def wait():
        channel.get()
        used.append(time.thread_time())

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.5)
    channel.put(None)
    thread.join(5)
    assert used[0] < 0.005


def test_many_threads_lose_and_double_nothing():
    channel = Channel(4)
    taken, lock = [], threading.Lock()

    def consume():
        for item in channel:
            with lock:
                taken.append(item)

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    producers = [
        threading.Thread(target=lambda k=k: [channel.put(k * 1000 + i) for i in range(300)])
        for k in range(3)
    ]
    for thread in consumers + producers:
        thread.start()
    for thread in producers:
        thread.join(10)
    channel.close()
    for thread in consumers:
        thread.join(10)
    assert sorted(taken) == sorted(k * 1000 + i for k in range(3) for i in range(300))
