"""A target: a server with two Python children and one that is no Python, as vLLM has them where
nothing sets titles. Run under the name `vllm`, with the argument `serve`."""

import multiprocessing
import subprocess
import sys
import time


def work() -> None:
    time.sleep(60)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=work, daemon=True) for _ in range(2)]
    for child in children:
        child.start()
    other = subprocess.Popen(["sleep", "60"])
    print("ready", *(child.pid for child in children), other.pid, flush=True)
    sys.stdin.readline()
    other.kill()
    for child in children:
        child.kill()
