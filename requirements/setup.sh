#!/usr/bin/env bash
# Brings .venv to what requirements/ and pyproject.toml say, and does nothing if it is there already.
#
# Everything is pinned, so nothing is resolved: torch goes first, with its own dependencies (on some
# platforms its wheel needs CUDA libraries that it pins itself), then the whole list exactly as
# written with --no-deps, which is also how LMCache comes without the cloud clients it declares.
set -euo pipefail
cd "$(dirname "$0")/.."

second_lmcache=0.5.6 # the other side of the version matrix; the first is in constraints.txt
venv=.venv
python=${PYTHON:-python3}

hash_of() { cat "$@" | sha256sum | cut -c1-12; }
packages_stamp=$venv/.stamp-$(hash_of requirements/constraints.txt requirements/setup.sh)
project_stamp=$venv/.stamp-project-$(hash_of pyproject.toml)
home=$venv/.home # an environment holds absolute paths: one that was moved or copied is another's
runs_here() { "$venv/bin/python" -c '' && [ "$(cat "$home")" = "$PWD" ]; }
is_ready() { [ -e "$packages_stamp" ] && [ -e "$project_stamp" ] && runs_here; }
say() { printf '== setup: %s\n' "$*"; }

is_ready 2>/dev/null && exit 0

# Two `make`s started together must not install into one folder at once.
exec 9>.setup.lock
flock 9
is_ready 2>/dev/null && exit 0

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "stallscope needs Python 3.11 or newer; '$python' is not (set PYTHON=...)" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "'$python' cannot make virtual environments: install python3-venv" >&2
  exit 1
fi

# pip takes a package that was cut short while it was being unpacked for an installed one.
unfinished=$venv/.unfinished
if [ -e "$unfinished" ]; then
  say "the last set-up was cut short: starting afresh"
  rm -rf "$venv"
elif [ -e "$home" ] && ! runs_here; then
  say "$venv was made for another place or Python: starting afresh"
  rm -rf "$venv"
fi
interrupted=
trap 'interrupted=1; exit 130' INT TERM HUP
trap '[ $? -ne 0 ] && [ -z "$interrupted" ] && rm -f "$unfinished"' EXIT # failed, but whole

started=$SECONDS
if ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
  say "making $venv"
  "$python" -m venv "$venv"
fi
touch "$unfinished"
echo "$PWD" >"$home"

# At a terminal pip shows its progress bars; in a log they would be noise.
quiet=(--quiet)
if [ -t 1 ]; then quiet=(); fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input "${quiet[@]}" "$@"; }
wheels() { pip install --no-warn-conflicts --only-binary :all: "$@"; }

if [ ! -e "$packages_stamp" ]; then
  say "installing torch (the longest part: 200 MB on a CPU build, some GB on a CUDA build)"
  wheels --constraint requirements/constraints.txt torch
  say "installing the pinned packages"
  wheels --no-deps --requirement requirements/constraints.txt
  if [ ! -e "$venv/lmcache-$second_lmcache" ]; then
    say "installing LMCache $second_lmcache beside it, for the version matrix"
    rm -rf "$venv/lmcache-next"
    wheels --no-deps --target "$venv/lmcache-next" "lmcache==$second_lmcache"
    mv "$venv/lmcache-next" "$venv/lmcache-$second_lmcache"
  fi
  rm -f "$venv"/.stamp-*
  touch "$packages_stamp"
fi
say "installing stallscope itself, editable"
pip install --no-deps --no-build-isolation --editable .
rm -f "$venv"/.stamp-project-*
touch "$project_stamp"
rm "$unfinished"
say "ready in $((SECONDS - started)) s"
