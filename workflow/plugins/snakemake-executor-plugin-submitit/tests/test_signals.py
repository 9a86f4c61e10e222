"""Signals that stop a run, where they come while the main thread goes to sleep."""

import subprocess
import sys

import pytest

ASLEEP = """
import asyncio, signal, threading, time
from snakemake_executor_plugin_submitit import signals
from snakemake_executor_plugin_submitit.executor import Executor
executor = Executor.__new__(Executor)
signals.heed()
async def ask():
    async for _ in executor.check_active_jobs([]):
        pass
def run():
    time.sleep(0.5)
    signal.pthread_kill(threading.get_ident(), signal.{name})  # the main thread sleeps on
    time.sleep(0.5)
    print("asks", flush=True)
    asyncio.run(ask())
threading.Thread(target=run, daemon=True).start()
try:
    threading.Semaphore(0).acquire()
except KeyboardInterrupt:
    print("stops")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_did_not_interrupt_the_main_thread_is_heeded_with_the_next_query(name):
    done = subprocess.run([sys.executable, "-c", ASLEEP.format(name=name)], capture_output=True, text=True, timeout=20)
    assert done.stdout.split() == ["asks", "stops"], done.stderr


TWICE = """
import os, signal, time
from snakemake_executor_plugin_submitit import signals
signals.heed()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    print("cancels")
signals.AGAIN_S = 0.0
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except KeyboardInterrupt:
    print("again")
"""


def test_a_signal_that_comes_twice_stops_once():
    """`timeout -s INT` signals the driver and then its process group."""
    done = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=20)
    assert done.stdout.split() == ["cancels", "again"], done.stderr
