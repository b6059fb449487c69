"""A target: the main thread is inside of C."""

import ctypes


def into_c() -> None:
    print("ready", flush=True)
    ctypes.CDLL(None).sleep(60)


if __name__ == "__main__":
    into_c()
