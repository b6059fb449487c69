"""Keeps the engine alive when another process truncates its page.

A store beyond the end of a shrunken file raises SIGBUS, which ends the process and which no
`except` sees. Nobody may truncate a page, but an engine must not die of a careless `> file`.
The handler puts anonymous memory under the page's addresses and returns, so that the store is
repeated and succeeds; the heartbeat then counts the page as lost. A SIGBUS at any other address
keeps its former disposition.

The handler is a Python callback. That is safe here alone: page stores are made by bytecode that
holds the interpreter lock, so the callback is entered by the thread that already owns it.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
from dataclasses import dataclass

from patched_engine.locks import ForkSafeLock

_SA_SIGINFO = 4
_SA_NODEFER = 0x40000000
_SI_ADDRESS_OFFSET = 16  # siginfo_t.si_addr on 64-bit Linux
_SIGSET_BYTES = 128
_MAP_FAILED = ctypes.c_void_p(-1).value

_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _SigAction(ctypes.Structure):
    """glibc's struct sigaction on 64-bit Linux."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * _SIGSET_BYTES),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Guard:
    """One guarded mapping: its addresses, and whether the guard stands."""

    start: int
    length: int
    active: bool


_lock = ForkSafeLock()
_ranges: list[tuple[int, int]] = []
_previous = _SigAction()
_installed = False
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
rescues = 0


def _on_bus_error(_signal: int, info: int | None, _context: int | None) -> None:
    global rescues
    address = ctypes.c_size_t.from_address((info or 0) + _SI_ADDRESS_OFFSET).value if info else 0
    for start, length in _ranges:
        if start <= address < start + length:
            placed = _libc.mmap(
                start,
                length,
                mmap.PROT_READ | mmap.PROT_WRITE,
                mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10,  # MAP_FIXED
                -1,
                0,
            )
            if placed != _MAP_FAILED:
                rescues += 1
                return
    # Not ours: give the signal its former disposition back; the fault repeats and goes there.
    _libc.sigaction(signal.SIGBUS, ctypes.byref(_previous), None)


_callback = _Handler(_on_bus_error)


def guard_mapping(mapping: mmap.mmap) -> Guard:
    """Guard one shared mapping against truncation; never raises. Linux, 64-bit."""
    try:
        buffer = ctypes.c_char.from_buffer(mapping)
        start = ctypes.addressof(buffer)
        del buffer  # else the mapping could never be closed
        length = len(mapping)
        with _lock:
            _ranges.append((start, length))
            active = _install()
        return Guard(start, length, active)
    except Exception:
        return Guard(0, 0, False)


def reinstall_guard() -> None:
    """Take SIGBUS back where another handler (faulthandler's, say) was put over ours since.

    What stood there becomes the former disposition: a fault that is not a page's goes to it.
    """
    global _installed
    with _lock:
        if not _installed:
            return
        current = _SigAction()
        asked = _libc.sigaction(signal.SIGBUS, None, ctypes.byref(current))
        if asked == 0 and current.handler != ctypes.cast(_callback, ctypes.c_void_p).value:
            _installed = False
            _install()


def _install() -> bool:
    global _installed
    if _installed:
        return True
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    action = _SigAction()
    action.handler = ctypes.cast(_callback, ctypes.c_void_p).value
    action.flags = _SA_SIGINFO | _SA_NODEFER
    failed: int = _libc.sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_previous))
    _installed = not failed
    return _installed
