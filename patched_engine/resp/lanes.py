"""Who carries completions: an event loop by itself, or one thread for futures without a loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import Callable


class Lanes:
    """One lane for the thread, one for each running event loop; those of ended loops are reused.

    `for_threads` and `for_loop` are called under the client's lock, `drain(lane)` is not.
    """

    def __init__(
        self, open_lane: Callable[[], tuple[int, int]], drain: Callable[[int], None]
    ) -> None:
        self._open_lane = open_lane
        self._drain = drain
        self._loops: dict[int, tuple[asyncio.AbstractEventLoop, int]] = {}
        self._thread: threading.Thread | None = None
        self._thread_lane = -1
        self._stop = -1
        self._is_over = False

    def for_threads(self) -> int:
        """The lane of the thread, which is started when first asked for."""
        if self._thread is None:
            self._thread_lane, wake = self._open_lane()
            self._stop = os.eventfd(0, os.EFD_CLOEXEC)
            self._thread = threading.Thread(
                target=self._run, args=(wake, self._stop), name="stallscope-resp-drain", daemon=True
            )
            self._thread.start()
        return self._thread_lane

    def for_loop(self, loop: asyncio.AbstractEventLoop) -> int:
        """The lane of a running loop; called on its thread."""
        for lane, (known, _) in self._loops.items():
            if known is loop:
                return lane
        free = [(lane, wake) for lane, (old, wake) in self._loops.items() if old.is_closed()]
        lane, wake = free[0] if free else self._open_lane()
        self._loops[lane] = (loop, wake)
        loop.add_reader(wake, self._drain, lane)
        return lane

    def close(self) -> None:
        """After the engine has ended everything: delivers what is left and lets go of the loops."""
        self._is_over = True
        if self._thread is threading.current_thread():  # closed by a future's callback
            self._drain(self._thread_lane)
        elif self._thread is not None:
            os.eventfd_write(self._stop, 1)
            self._thread.join()
        if self._thread is not None:
            os.close(self._stop)
        for lane, (loop, wake) in self._loops.items():
            if loop.is_closed():
                self._drain(lane)
                continue
            # Futures of a loop are its own thread's to complete, and so is its selector.
            if _is_running_here(loop):
                self._finish(loop, lane, wake)
            else:
                gone = threading.Event()
                with contextlib.suppress(RuntimeError):  # it was closed in between
                    loop.call_soon_threadsafe(self._finish, loop, lane, wake, gone)
                    gone.wait(1.0 if loop.is_running() else 0.0)
        self._loops.clear()

    def _finish(
        self,
        loop: asyncio.AbstractEventLoop,
        lane: int,
        wake: int,
        gone: threading.Event | None = None,
    ) -> None:
        loop.remove_reader(wake)
        self._drain(lane)
        if gone is not None:
            gone.set()

    def _run(self, wake: int, stop: int) -> None:
        poller = select.poll()
        poller.register(wake, select.POLLIN)
        poller.register(stop, select.POLLIN)
        while True:
            poller.poll()
            self._drain(self._thread_lane)
            if self._is_over:
                return


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
