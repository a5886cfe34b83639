"""Errors of optional packages keep their own words: advice is added to them."""

import sys

import pytest

from common.errors import MissingPackage, import_optional, report_damage

HINT = "models named timm:... need the package timm: pip install timm"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a package with this code on the path, under a name that nobody else has."""

    def put(code: str) -> str:
        (tmp_path / "fragile_package.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "fragile_package", raising=False)
        return "fragile_package"

    return put


def test_missing_package_says_how_to_get_it():
    with pytest.raises(MissingPackage) as refused:
        import_optional("fragile_package.inner", HINT)
    assert str(refused.value) == HINT


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ImportError('libcuda.so.1: cannot open shared object file')", "libcuda.so.1: cannot open"),
        ("import another_that_is_not_there", "No module named 'another_that_is_not_there'"),
    ],
)
def test_broken_package_says_so_itself(package, code, words):
    """It was said to be missing, so it was installed again and again."""
    with pytest.raises(MissingPackage) as refused:
        import_optional(package(code), HINT)
    assert str(refused.value).startswith(f"fragile_package is installed, but importing it fails: {words}")
    assert str(refused.value).endswith(f"; {HINT}")


def test_missing_package_is_no_damaged_file(tmp_path):
    with pytest.raises(MissingPackage, match="^models named"), report_damage(tmp_path / "best.safetensors"):
        import_optional("fragile_package", HINT)
