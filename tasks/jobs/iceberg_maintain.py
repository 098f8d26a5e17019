"""Maintain an Iceberg table of the catalog; ``--help`` lists the options:

    MONODON_API_KEY=mnd_... spark-submit --packages \
        org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0 tasks/jobs/iceberg_maintain.py \
        compact sales.orders --url http://127.0.0.1:2333

Progress, log lines and the result are written to standard output, one JSON object per line. The script needs the
package ``iceberg`` beside it, and nothing else of Monodon.
"""

import sys

from iceberg.command import main

if __name__ == "__main__":
    sys.exit(main())
