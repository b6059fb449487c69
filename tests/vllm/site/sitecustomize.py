"""Has Triton's interpreter stand for a device, so that vLLM's PCP runs without one.

vLLM's prefill context parallelism needs Triton kernels. On a CPU their interpreter runs them,
slowly, once Triton believes that it has an active driver.
"""

import importlib.abc
import importlib.util
import os
import sys


class _Driver:
    @classmethod
    def is_active(cls) -> bool:
        return True


class _Backend:
    driver = _Driver
    compiler = None


class _Finder(importlib.abc.MetaPathFinder):
    _is_looking = False

    def find_spec(self, name, path, target=None):
        if name != "triton.backends" or self._is_looking:
            return None
        type(self)._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            type(self)._is_looking = False
        execute = spec.loader.exec_module

        def execute_with_cpu(module):
            execute(module)
            module.backends["cpu"] = _Backend

        spec.loader.exec_module = execute_with_cpu
        return spec


if os.environ.get("TRITON_INTERPRET") == "1":
    sys.meta_path.insert(0, _Finder())
