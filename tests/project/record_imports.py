"""Import the modules given and print, as JSON, what LMCache's own modules import directly.

Run as a script in a fresh interpreter: which LMCache it sees is the caller's PYTHONPATH.
"""

import builtins
import importlib
import json
import sys
from collections.abc import Mapping, Sequence

direct: set[str] = set()
plain_import = builtins.__import__


def recording_import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> object:
    module = plain_import(name, globals, locals, fromlist or (), level)
    importer = str((globals or {}).get("__name__", ""))
    top = name.partition(".")[0]
    # Noted only when it worked: LMCache probes for accelerators that are not there, and goes on.
    if level == 0 and importer.partition(".")[0] == "lmcache":
        direct.add(top)
    return module


def main() -> None:
    import torch  # noqa: F401  LMCache's native modules link against it and must find it loaded

    builtins.__import__ = recording_import  # type: ignore[assignment]
    failed = {}
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except Exception as error:
            failed[name] = repr(error)
    import lmcache

    names = sorted(direct - set(sys.stdlib_module_names) - {"lmcache"})
    print(json.dumps({"direct": names, "failed": failed, "lmcache": lmcache.__file__}))


if __name__ == "__main__":
    main()
