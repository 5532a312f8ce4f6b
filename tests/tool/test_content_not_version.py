"""Content decides, a version string does not (accident 18)."""

import shutil

from test_which_copy_is_imported import doctor


def test_the_right_version_over_the_wrong_content_is_found_out(built, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(built.build / "python", site)
    (site / "sglang" / "_version.py").write_text("__version__ = version = '1.2.3+fork.1'\n")
    (site / "sglang" / "linear.py").write_bytes(built.upstream["linear.py"])
    status, output = doctor(built, site)
    assert status == 1 and "unpatched linear.py" in output
    assert "version   1.2.3+fork.1 in _version.py" in output


def test_a_wheel_that_has_the_pinned_name_and_other_content_is_refused(built):
    """The release was uploaded again under its old name."""
    path = built.wheel_path()
    path.write_bytes(path.read_bytes() + b"\0")
    shutil.rmtree(built.cache / "upstream.git")
    output = built.fails(3, "--source", str(path))
    assert "has sha256" in output and "upstream.toml says" in output


def test_a_pin_of_other_sources_is_refused(built):
    """Right release, right file name, new sha256, and sources that are not the pinned ones."""
    accepted = (built.root / "upstream.toml").read_text()
    products = accepted[accepted.index("[products]") :]
    built.pin({**built.upstream, "unrelated.py": b"X = 1\n"})
    with open(built.root / "upstream.toml", "a") as pin:
        pin.write(products)
    output = built.fails(1)
    assert "is not the pinned upstream" in output
