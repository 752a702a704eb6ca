"""Which process may write here? The one that holds the lock file, on any file system.

The lock is one of the operating system, which ends with the process that holds it, however that ends. On a file system
without locks it is a lease: a second file, FILE.lease, that its holder renews every few seconds.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import AcquireReturnProxy

LEASE_S = 30.0  # a lease that was not renewed for so long is taken over; its holder renews it every 10 s
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # what a file system without locks answers


def locked(file: Path, wait_s: float) -> AcquireReturnProxy:
    """Lock this file: `with locked(file, 10):`, or `lock = locked(file, 10).lock` and later `lock.release()`.

    wait_s: how long to wait for another process that holds it, -1: forever.
    Raises filelock.Timeout if another process still holds it, OSError if the file cannot be used.
    """
    from filelock import FileLock, LeaseSettingsMismatch, SoftFileLease, Timeout

    try:
        lock = FileLock(file, fallback_to_soft=False, thread_local=False)
        return lock.acquire(timeout=wait_s, poll_interval=0.05)
    except NotImplementedError:
        pass
    except OSError as error:  # Timeout is one as well
        if error.errno not in NO_LOCKS:
            raise
    # a holder that is gone from this host loses it at once, one on another host when it no longer renews it
    lease = SoftFileLease(lease_of(file), lease_duration=LEASE_S, thread_local=False)
    with suppress(LeaseSettingsMismatch):  # of another version: somebody has it
        return lease.acquire(timeout=wait_s, poll_interval=0.05)
    raise Timeout(str(file))


def lease_of(file: Path) -> Path:
    """Where the lease is that stands for a lock on this file."""
    return file.with_name(file.name + ".lease")
