"""A target: one thread waits for an answer that never comes, the main thread reads a pipe."""

import sys
import threading
from concurrent.futures import Future


class Client:
    def batch_exists_sync(self) -> None:
        Future().result()


def main() -> None:
    threading.Thread(target=Client().batch_exists_sync, name="lookup-server-thread").start()
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
