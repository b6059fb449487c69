"""Lay our CUDA kernel over a copy of FlashInfer's sources, so that its MoE runner launches ours.

    python -m patched_engine.kernels.flashinfer_overlay PACKAGE_FOLDER TARGET_FOLDER

FlashInfer's fused MoE launches its activation inside a C++ runner that is built on first use from
sources in its wheel. This copies that package, checks its version, the three files' digests and
every anchor, and only then edits the copy. The installed package is never touched.

The whole runner also needs cubins and headers that FlashInfer downloads and its wheel leaves out,
so its build is a documented command (``BUILD_COMMAND``) that has NOT been run here.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

CUDA_SOURCES = Path(__file__).parent / "cuda"
OUR_FILES = ("stallscope_activation.cuh", "stallscope_flashinfer.cuh")

KERNEL_FILE = "data/csrc/fused_moe/trtllm_backend/trtllm_fused_moe_dev_kernel.cu"
HEADER_FILE = "data/include/flashinfer/trtllm/fused_moe/DevKernel.h"
RUNNER_FILE = "data/csrc/trtllm_fused_moe_runner.cu"

SUPPORTED_VERSION = "0.7.0.post1"
DIGESTS = {
    KERNEL_FILE: "4fec8e6380aaab32cb073b70f943cbc9e3c16cc0171c7c3aabcdcae478ab9e69",
    HEADER_FILE: "12faa83dddae3b212a9a365f4cc7cfc6b6aa5e1c269dba7ea11996ed08f5b96c",
    RUNNER_FILE: "a446c0d7739dbe91190f4cc56608eafd08fbfd85fec4a055fd8556e5f58b6362",
}
"""SHA-256 of the files we edit, as that version's wheel ships them."""

BUILD_COMMAND = (
    "PYTHONPATH={target} python -c 'from flashinfer.jit.fused_moe import "
    "gen_trtllm_gen_fused_moe_sm100_module as gen; gen().build_and_load()'"
)
"""Builds the whole runner on a host that reaches FlashInfer's artefacts. NOT run by us."""


class OverlayRefused(RuntimeError):
    """The sources are not the ones this overlay was written for; nothing was changed."""


@dataclass(frozen=True)
class Edit:
    """Insert ``text`` at the one place in ``section`` where ``anchor`` stands."""

    path: str
    anchor: str
    text: str
    after: bool = True
    section: tuple[str, str] | None = None


_ACTIVATION = ("namespace activation {", "}  // namespace activation")

EDITS = (
    Edit(
        HEADER_FILE,
        "struct Data {\n",
        "  // stallscope: the compact rows, from the routing that the GEMMs already follow.\n"
        "  int32_t const* stallscopeNumTiles{nullptr};\n"
        "  int32_t const* stallscopeRowLimit{nullptr};\n"
        "  int64_t stallscopeExpectedRows{0};\n",
        section=_ACTIVATION,
    ),
    Edit(
        KERNEL_FILE,
        '#include "flashinfer/utils.cuh"\n',
        '#include "stallscope_flashinfer.cuh"\n',
    ),
    Edit(
        KERNEL_FILE,
        "  if (data.mUseDeepSeekFp8) {\n",
        "  if (stallscope::try_flashinfer<tg::Dtype>(data, stream)) return;\n",
        after=False,
        section=_ACTIVATION,
    ),
    Edit(
        RUNNER_FILE,
        "  activationData.tileTokensDim = workspace.ProjUpTileN;\n",
        "  if (isGatedActivation(args.activation_type)) {  // else its own kernel runs\n"
        "    activationData.stallscopeNumTiles = workspace.num_non_exiting_ctas;\n"
        "    activationData.stallscopeRowLimit = workspace.cta_idx_xy_to_mn_limit;\n"
        "    activationData.stallscopeExpectedRows =\n"
        "        int64_t{args.num_tokens} * totalExpertsPerToken *\n"
        "        (args.local_num_experts + args.num_fused_shared_experts) / totalNumExperts;\n"
        "  }\n",
    ),
)


def read_version(package: Path) -> str:
    """The version in the package's build record. Raises OverlayRefused if there is none."""
    record = package / "_build_meta.py"
    if not record.is_file():
        raise OverlayRefused(f"{package} has no _build_meta.py: pass the flashinfer package folder")
    found = re.search(r'__version__\s*=\s*"([^"]+)"', record.read_text())
    if found is None:
        raise OverlayRefused(f"{record} names no version: reinstall flashinfer-python")
    return found[1]


def insert(source: str, edit: Edit) -> str:
    """``source`` with ``edit`` made. Raises OverlayRefused unless its anchor stands there once."""
    start, end = 0, len(source)
    if edit.section is not None:
        opening, closing = edit.section
        if source.count(opening) != 1 or source.count(closing) != 1:
            raise OverlayRefused(f"{edit.path}: the section {opening!r} does not stand there once")
        start, end = source.index(opening), source.index(closing)
    found = source.count(edit.anchor, start, end)
    if found != 1:
        raise OverlayRefused(
            f"{edit.path}: the anchor {edit.anchor.strip()!r} stands there {found} times, not once"
        )
    at = source.index(edit.anchor, start, end) + (len(edit.anchor) if edit.after else 0)
    return source[:at] + edit.text + source[at:]


def check(package: Path) -> None:
    """Raise OverlayRefused unless version, digests and anchors are the ones we know."""
    version = read_version(package)
    if version != SUPPORTED_VERSION:
        raise OverlayRefused(
            f"flashinfer {version} in {package} is not {SUPPORTED_VERSION}: install that version, "
            "or leave its own activation kernel in place"
        )
    for name, digest in DIGESTS.items():
        path = package / name
        if not path.is_file():
            raise OverlayRefused(f"{path} is missing: reinstall flashinfer-python=={version}")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != digest:
            raise OverlayRefused(
                f"{path} differs from the wheel's (sha256 {found[:12]}, not {digest[:12]}): "
                f"reinstall flashinfer-python=={version}"
            )
    for edit in EDITS:
        insert((package / edit.path).read_text(), edit)


def overlay(package: Path, target: Path) -> Path:
    """Copy ``package`` to ``target``/flashinfer with our kernel laid over it; return the copy.

    Raises OverlayRefused, having changed nothing, for a source we do not know or a target that
    already holds a copy.
    """
    check(package)
    copy = target / "flashinfer"
    if copy.exists():
        raise OverlayRefused(f"{copy} exists: remove it or pass another target folder")
    target.mkdir(parents=True, exist_ok=True)
    partial = target / ".flashinfer.partial"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(package, partial)
    for name in DIGESTS:
        path = partial / name
        text = path.read_text()
        for edit in EDITS:
            if edit.path == name:
                text = insert(text, edit)
        path.write_text(text)
    for name in OUR_FILES:
        shutil.copy2(CUDA_SOURCES / name, (partial / KERNEL_FILE).parent / name)
    partial.rename(copy)
    return copy


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 when the overlay was laid, 1 when it was refused, 64 for usage."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 2:
        print(__doc__, file=sys.stderr)
        return 64
    package, target = Path(given[0]), Path(given[1])
    try:
        copy = overlay(package, target)
    except (OverlayRefused, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    print(f"laid over {copy}")
    print(f"to build the whole runner (not run by us): {BUILD_COMMAND.format(target=target)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
