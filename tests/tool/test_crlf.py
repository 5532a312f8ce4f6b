"""CR bytes are content: none is lost, none is added (accident 9)."""

from forks import UPSTREAM, change

DOS = UPSTREAM["srt/dos.py"]


def test_a_patch_keeps_crlf_lines(fork):
    edited = change(DOS, (b"second = 2\r\n", b"second = 22\r\nand_a_half = 2.5\r\n"))
    path = fork.add_change("dos.patch", srt__dos_py=edited)
    assert b"+second = 22\r\n" in path.read_bytes() and b"+++ b/python/sglang/srt/dos.py\n" in path.read_bytes()
    fork.make()
    assert fork.file("srt/dos.py").read_bytes() == edited
    assert "no patch rewritten" in fork.ok("--refresh")


def test_a_patch_may_change_line_ends_only(fork):
    path = fork.add_change("unix.patch", srt__dos_py=DOS.replace(b"\r\n", b"\n"))
    fork.make()
    assert fork.file("srt/dos.py").read_bytes() == b"first = 1\nsecond = 2\nthird = 3\n"
    before = path.read_bytes()
    assert "no patch rewritten" in fork.ok("--refresh") and path.read_bytes() == before


def test_a_patch_that_lost_its_crs_does_not_apply(fork):
    path = fork.add_change("dos.patch", srt__dos_py=change(DOS, (b"second = 2\r\n", b"second = 22\r\n")))
    path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    output = fork.fails(2, "--update-pin")
    assert "the patch expects 'first = 1'" in output and r"the tree has      'first = 1\r'" in output


def test_an_edit_in_quilt_keeps_crlf_lines(fork):
    path = fork.add_change("dos.patch", srt__dos_py=change(DOS, (b"second = 2\r\n", b"second = 22\r\n")))
    fork.make()
    file = fork.file("srt/dos.py")
    file.write_bytes(file.read_bytes() + b"fourth = 4\r\n")
    fork.ok("--refresh")
    assert b"+fourth = 4\r\n" in path.read_bytes()
    fork.make()
    assert file.read_bytes().count(b"\r\n") == 4


def test_a_missing_line_end_at_the_end_of_a_file_survives(fork):
    path = fork.add_change("end.patch", other_py=b"def other():\n    return 3")
    assert b"\\ No newline at end of file" in path.read_bytes()
    fork.make()
    assert fork.file("other.py").read_bytes() == b"def other():\n    return 3"
    assert "no patch rewritten" in fork.ok("--refresh")
