"""The overlay edits a copy of sources it knows, at anchors that stand there once, or refuses."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from patched_engine.kernels import flashinfer_overlay as overlay

HEADER = """namespace moe::dev {
namespace activation {
struct Data {
  int32_t tileTokensDim{0};
};
}  // namespace activation
namespace permute {
struct Data {
};
}
"""
KERNEL = """#include "flashinfer/utils.cuh"
namespace activation {
void run(Data const& data, void* stream) {
  if (data.mUseDeepSeekFp8) {
  }
}
}  // namespace activation
namespace finalize {
  if (data.mUseDeepSeekFp8) {
  }
}
"""
RUNNER = """  // a runner
  activationData.tileTokensDim = workspace.ProjUpTileN;
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the right shape, whose digests are declared to be the known ones."""
    root = tmp_path / "installed" / "flashinfer"
    texts = {
        overlay.HEADER_FILE: HEADER,
        overlay.KERNEL_FILE: KERNEL,
        overlay.RUNNER_FILE: RUNNER,
    }
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "_build_meta.py").write_text(f'__version__ = "{overlay.SUPPORTED_VERSION}"\n')
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
    monkeypatch.setattr(overlay, "DIGESTS", digests)
    return root


def test_the_copy_is_edited_and_the_package_is_not(package: Path, tmp_path: Path) -> None:
    copy = overlay.overlay(package, tmp_path / "target")
    kernel = (copy / overlay.KERNEL_FILE).read_text().splitlines()
    assert kernel[1] == '#include "stallscope_flashinfer.cuh"'
    call = "  if (stallscope::try_flashinfer<tg::Dtype>(data, stream)) return;"
    assert kernel[kernel.index(call) + 1] == "  if (data.mUseDeepSeekFp8) {"
    assert kernel.count(call) == 1
    header = (copy / overlay.HEADER_FILE).read_text()
    assert header.index("stallscopeNumTiles") < header.index("tileTokensDim")
    assert header.count("stallscopeNumTiles") == 1
    runner = (copy / overlay.RUNNER_FILE).read_text()
    assert "stallscopeRowLimit = workspace.cta_idx_xy_to_mn_limit;" in runner
    for name in overlay.OUR_FILES:
        ours = (copy / overlay.KERNEL_FILE).parent / name
        assert ours.read_bytes() == (overlay.CUDA_SOURCES / name).read_bytes()
    assert (package / overlay.KERNEL_FILE).read_text() == KERNEL


def test_another_version_is_refused(package: Path, tmp_path: Path) -> None:
    (package / "_build_meta.py").write_text('__version__ = "0.7.1"\n')
    with pytest.raises(
        overlay.OverlayRefused, match=r"flashinfer 0\.7\.1 .* is not 0\.7\.0\.post1"
    ):
        overlay.overlay(package, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_changed_file_is_refused(package: Path, tmp_path: Path) -> None:
    (package / overlay.RUNNER_FILE).write_text(RUNNER + "// edited\n")
    with pytest.raises(overlay.OverlayRefused, match="differs from the wheel's"):
        overlay.overlay(package, tmp_path / "target")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("count", [0, 2])
def test_an_anchor_that_does_not_stand_there_once_is_refused(count: int) -> None:
    edit = overlay.Edit("a.cu", "anchor\n", "text\n")
    with pytest.raises(overlay.OverlayRefused, match=f"stands there {count} times, not once"):
        overlay.insert("anchor\n" * count, edit)


def test_a_section_that_is_not_there_once_is_refused() -> None:
    edit = overlay.Edit("a.cu", "x", "y", section=("begin", "end"))
    with pytest.raises(overlay.OverlayRefused, match="the section 'begin'"):
        overlay.insert("x end", edit)


def test_a_second_overlay_on_one_target_is_refused(package: Path, tmp_path: Path) -> None:
    overlay.overlay(package, tmp_path / "target")
    with pytest.raises(overlay.OverlayRefused, match="remove it or pass another"):
        overlay.overlay(package, tmp_path / "target")


def test_the_command_line(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert overlay.main([str(package), str(tmp_path / "target")]) == 0
    assert "not run by us" in capsys.readouterr().out
    assert overlay.main([str(tmp_path), str(tmp_path / "other")]) == 1
    assert "refused: " in capsys.readouterr().err
    assert overlay.main([]) == 64
