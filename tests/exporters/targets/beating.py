"""A target: notes the longest time between two turns of its loop; says it, and begins anew, for
each line on standard input."""

import sys
import threading
import time


def main() -> None:
    asked = threading.Event()

    def listen() -> None:
        for _ in sys.stdin:
            asked.set()

    threading.Thread(target=listen, daemon=True).start()
    print("ready", flush=True)
    longest, last = 0.0, time.perf_counter()
    while True:
        time.sleep(0.0005)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
        if asked.is_set():
            asked.clear()
            print(longest, flush=True)
            longest = 0.0


if __name__ == "__main__":
    main()
