"""Folders that only this user can write to, and files in them that can be trusted as much as the program itself.

The cache holds machine code, so whoever can write there can run code as this user. A folder is used only if it is ours
and nobody else may write to it, and if nobody else may put another in its place: each folder on the way to it belongs
to us or to root, and is writable by others only with the sticky bit (as OpenSSH asks of keys; a group whose only member
is this user counts as the user). Links on the way are followed where they are ours or root's.

The way is walked from the root by directory descriptors, one name at a time and without following links, and each
folder is judged by its open descriptor: what was judged is what is used. A folder that was found good is known by its
device and inode number afterwards; that it is ours and private is asked anew at each use, by `fstat`.

Systems without user ids or directory descriptors (Windows) have neither these modes nor these links: there the folders
are used as they are, protected by the access lists that they inherit from the user's profile.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from weft.lazy_dataclass import dataclass

POSIX = hasattr(os, "geteuid") and os.open in os.supports_dir_fd and os.mkdir in os.supports_dir_fd
"""True where the system has what the checks are made of."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_MAX_LINKS = 40  # as Linux
_PASS = os.O_RDONLY | getattr(os, "O_PATH", 0)  # to go through a folder, one need not be able to list it
_BELOW = os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC if POSIX else 0
_READ = (os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC) if POSIX else 0
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)

_good: set[tuple[int, int]] = set()  # device and inode number of folders that were reached by a safe way
_MAX_GOOD = 1 << 14


class Refused(Exception):  # noqa: N818  (no error of the program: it goes on without the folder)
    """A folder or a file is not trusted; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder; `descriptor` is None where the system has no such thing."""

    path: str
    descriptor: int | None

    def name(self, name: str) -> str:
        """The name that system calls take for a file in this folder, beside the descriptor."""
        return os.path.join(self.path, name) if self.descriptor is None else name

    def read(self, name: str) -> tuple[bytes, float]:
        """The bytes of a file and when it was last written to. OSError where it cannot be read; `Refused` for what is
        no file of ours that only we can write to. Never waits: pipes and devices are refused."""
        descriptor = os.open(self.name(name), _READ | _BINARY, dir_fd=self.descriptor)
        try:
            found = os.fstat(descriptor)
            if POSIX:
                _check_file(os.path.join(self.path, name), found)
                if found.st_mode & _OTHERS:
                    with contextlib.suppress(OSError):  # on a medium that is only read, it stays readable
                        os.fchmod(descriptor, 0o600)
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                return file.readall(), found.st_mtime
        finally:
            os.close(descriptor)

    def write(self, name: str, data: bytes) -> None:
        """Make a new file, for this user only. OSError where there cannot be one, or where one is."""
        descriptor = os.open(self.name(name), _WRITE | _BINARY, 0o600, dir_fd=self.descriptor)
        with open(descriptor, "wb", buffering=0) as file:
            if POSIX:
                os.fchmod(descriptor, 0o600)  # whatever the umask
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]

    def rename(self, old: str, new: str) -> None:
        """Give a file the name of another, which it replaces."""
        d = self.descriptor
        os.replace(self.name(old), self.name(new), src_dir_fd=d, dst_dir_fd=d)

    def unlink(self, name: str) -> None:
        """Remove a file, or the link of that name. OSError where there is none."""
        os.unlink(self.name(name), dir_fd=self.descriptor)

    def touch(self, name: str) -> None:
        """Note that a file is in use."""
        if self.descriptor is None:
            os.utime(self.name(name))
        else:
            os.utime(name, dir_fd=self.descriptor, follow_symlinks=False)

    def entries(self) -> list[os.DirEntry[str]]:
        """The entries of the folder, while it is open."""
        with os.scandir(self.path if self.descriptor is None else self.descriptor) as found:
            return list(found)

    def close(self) -> None:
        """Let go of the folder."""
        if self.descriptor is not None:
            os.close(self.descriptor)


@contextmanager
def opened(
    root: Path, *below: str, make: bool = False, holds: Callable[[str], bool] | None = None
) -> Generator[Folder]:
    """The folder `root`/`below`..., open. With `make`, what is missing of it is made, for this user only.

    OSError where it cannot be opened, `Refused` where somebody else could have put there what it holds. Of a folder of
    ours that others may only read, the permissions are mended; of `root`, which may be a folder of many uses, only
    where `holds` is true of all names in it.
    """
    path = os.path.join(root, *below)
    folder = _reopened(path) if POSIX else _plain(path, make)
    if folder is None:
        folder = _walked(root, below, make, holds)
    try:
        yield folder
    finally:
        folder.close()


def _plain(path: str, make: bool) -> Folder:
    """The folder where there is nothing to check."""
    if make:
        os.makedirs(path, mode=0o700, exist_ok=True)
    return Folder(path, None)


def _reopened(path: str) -> Folder | None:
    """A folder that was found good before; None where another is there now, or none, or it is not private any more."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _BELOW)
    except OSError:
        return None
    found = os.fstat(descriptor)
    known = (found.st_dev, found.st_ino) in _good
    if known and not found.st_mode & _OTHERS and found.st_uid == os.geteuid():
        return Folder(path, descriptor)
    os.close(descriptor)
    return None


def _walked(root: Path, below: tuple[str, ...], make: bool, holds: Callable[[str], bool] | None) -> Folder:
    """The folder reached from the file system's root, each step judged by its descriptor."""
    here, at = _way_to(os.path.abspath(root), make)
    try:
        _check_folder(at, os.fstat(here))
        if os.fstat(here).st_mode & _OTHERS and holds is not None:
            _narrow_if(here, holds)
        for name in below:
            here, at = _step(here, at, name, make, os.O_RDONLY)
            found = os.fstat(here)
            _check_folder(at, found)
            if found.st_mode & _OTHERS:
                with contextlib.suppress(OSError):  # on a medium that is only read, it stays readable
                    os.fchmod(here, 0o700)
            if len(_good) >= _MAX_GOOD:
                _good.clear()
            _good.add((found.st_dev, found.st_ino))
        if not below:
            here, at = _step(here, at, ".", False, os.O_RDONLY)
    except BaseException:
        os.close(here)
        raise
    return Folder(os.path.join(root, *below), here)


def _narrow_if(here: int, holds: Callable[[str], bool]) -> None:
    """Have nobody else read a folder of ours, if all in it is what `holds` knows."""
    with contextlib.suppress(OSError):
        descriptor = os.open(".", os.O_RDONLY | _BELOW, dir_fd=here)
        try:
            if all(map(holds, os.listdir(descriptor))):
                os.fchmod(descriptor, 0o700)
        finally:
            os.close(descriptor)


def _way_to(path: str, make: bool) -> tuple[int, str]:
    """A descriptor of the folder, and its path without links."""
    names = list(reversed(path.split(os.sep)))
    here, at, links = os.open(os.sep, _PASS | _BELOW), os.sep, 0
    try:
        while names:
            name = names.pop()
            if name in ("", "."):
                continue
            _check_way(at, os.fstat(here))
            target = None if name == ".." else _link(here, at, name)
            if target is None:
                here, at = _step(here, at, name, make, _PASS)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise Refused(f"{path} goes through too many links")
            names.extend(reversed(target.split(os.sep)))
            if target.startswith(os.sep):
                os.close(here)
                here, at = -1, os.sep
                here = os.open(os.sep, _PASS | _BELOW)
    except BaseException:
        if here >= 0:
            os.close(here)
        raise
    return here, at


def _link(here: int, at: str, name: str) -> str | None:
    """The target of a link of that name; None where there is none."""
    try:
        found = os.stat(name, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(found.st_mode):
        return None
    if not _is_trusted(found.st_uid):
        raise Refused(f"{os.path.join(at, name)} is a link of another user ({found.st_uid})")
    return os.readlink(name, dir_fd=here)


def _step(here: int, at: str, name: str, make: bool, how: int) -> tuple[int, str]:
    """From an open folder, which is closed, to one in it."""
    try:
        below = os.open(name, how | _BELOW, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.mkdir(name, 0o700, dir_fd=here)
            if os.stat(name, dir_fd=here, follow_symlinks=False).st_mode & 0o700 != 0o700:  # a strange umask
                os.chmod(name, 0o700, dir_fd=here)
        below = os.open(name, how | _BELOW, dir_fd=here)
    os.close(here)
    return below, at if name == "." else os.path.normpath(os.path.join(at, name))


def _check_way(path: str, found: os.stat_result) -> None:
    """`Refused` for a folder in which others could replace what is below it."""
    if not _is_trusted(found.st_uid):
        raise Refused(f"{path} belongs to another user ({found.st_uid})")
    if found.st_mode & stat.S_ISVTX:
        return  # only owners rename or remove what is there
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)):
        raise Refused(f"others may write to {path} (mode {stat.S_IMODE(found.st_mode):04o})")


def _check_folder(path: str, found: os.stat_result) -> None:
    """`Refused` for a folder that is not ours, or in which others could put something."""
    if found.st_uid != os.geteuid():
        raise Refused(f"{path} belongs to another user ({found.st_uid})")
    if found.st_mode & OTHERS_WRITE:
        raise Refused(f"others may write to {path} (mode {stat.S_IMODE(found.st_mode):04o})")


def _check_file(path: str, found: os.stat_result) -> None:
    """`Refused` for a file that is not ours, that others could have written, or that is none."""
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{path} is no regular file")
    _check_folder(path, found)


def _is_trusted(user: int) -> bool:
    """True for us and root, who can do all anyway; in a container that maps few users, root is nobody."""
    return user in (os.geteuid(), 0) or user == _root_outside()


def _root_outside() -> int:
    """The number of users that this container does not know, the real root among them; -1 where it knows all."""
    with contextlib.suppress(OSError, ValueError):
        known = Path("/proc/self/uid_map").read_text().split()
        if known[:3] != ["0", "0", "4294967295"]:
            return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return -1


def _is_own_group(group: int) -> bool:
    """True for a group of this user's alone, as many systems give each user one of the same name."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}
