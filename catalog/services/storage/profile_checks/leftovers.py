"""Objects of earlier tests, which stay if the process of a test ends early."""

import time

from catalog.services.storage.profile_checks import objects
from catalog.services.storage.profile_checks.trial import Trial
from catalog.storage.configuration import StoreConfiguration
from catalog.storage.locations import TEST_PREFIX

MIN_AGE_SECONDS = 24 * 3600
"""No test runs that long."""


def remove(configuration: StoreConfiguration) -> int:
    """Remove what earlier tests left below the roots of a profile; returns the number of objects.

    The objects of a test stay as long as one of them is younger than a day. Raises OSError.
    """
    removed = 0
    for root in configuration.roots:
        store = Trial(configuration, root, root).store
        for name in store.list_directories(root, ""):
            if name.startswith(TEST_PREFIX):
                removed += _remove_old(Trial(configuration, root, f"{root}/{name}"))
    return removed


def _remove_old(trial: Trial) -> int:
    files = list(trial.store.list_tree(trial.directory))
    if any(file.modified_at > time.time() - MIN_AGE_SECONDS for file in files):
        return 0
    return objects.remove(trial, [file.name for file in files])
