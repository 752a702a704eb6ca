"""`python -m train.pretrain` on a file system without locks: every lock is refused as the system would refuse it."""

import errno
import os

import filelock

from configs import locks
from train import pretrain

SHORT_S = 0.4  # a lease in an attack


def main() -> int:
    def refuse(*arguments, **options):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    filelock.FileLock.acquire = refuse
    locks.LEASE_S = SHORT_S
    return pretrain.main()
