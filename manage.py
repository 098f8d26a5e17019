#!/usr/bin/env python
"""Django's command line for Monodon."""

import os
import sys

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line
from django.db.utils import OperationalError

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(str(error))
    except OperationalError as error:
        # Errors of statements have a code, and failures to connect have none.
        if getattr(error.__cause__, "sqlstate", None) is not None:
            raise
        sys.exit(
            f"The database cannot be used: {' '.join(str(error).split())}. "
            "Check DATABASE_URL, or start Monodon if its database is the embedded one."
        )
