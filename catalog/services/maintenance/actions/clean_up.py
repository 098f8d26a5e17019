"""Clean-up: remove old versions, and the files that only they refer to."""

from catalog import engines
from catalog.maintenance_actions import IcebergFiles, Implementation, MaintenanceAction
from catalog.planning import Proposal, Statistics
from catalog.policies import DAY, HOUR, EffectivePolicy, Mode, Rule, Unit
from catalog.services.maintenance.actions.results import removed_files


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    s = statistics
    if not s.old_versions:
        return None
    return Proposal(
        f"{s.old_versions} of {s.versions} versions are older than the policy retains",
        files_gone=s.removable_files,
        bytes_gone=s.removable_bytes,
        is_estimate=s.removable_is_estimate,
        is_for_spark=s.format == "iceberg"
        or engines.choose_for_removal(policy, s.removable_files, is_object=s.is_in_object_store)[0]
        == "spark",
    )


ACTION = MaintenanceAction(
    key="clean_up",
    title="Clean up",
    help="Removes expired versions, according to the policy, and their files. "
    "This cannot be undone. Tags and branches are kept.",
    icon="cleaning_services",
    group="Versions and snapshots",
    rules=(
        Rule(
            "cleanup", Unit.MODE, Mode.DRY_RUN, "Remove old versions or snapshots and their files."
        ),
        Rule("keep_for", Unit.SECONDS, 7 * DAY, "Retention time of a version.", low=HOUR),
        Rule(
            "keep_versions",
            Unit.COUNT,
            10,
            "Keep this many newest versions, whatever their age. Tags and branches are always kept.",
            low=1,
        ),
    ),
    implementations={
        "lance": Implementation(
            run="catalog.services.maintenance.lance_cleanup.clean_up",
            takes_spark=True,
            help="removes old versions, and the files that no other version refers to",
            settings="`keep_for`, `keep_versions`",
            promises={name: (("planned", name), (name,)) for name in ("files", "bytes")},
        ),
        "iceberg": Implementation(
            run="catalog.services.maintenance.iceberg_cleanup.clean_up",
            takes_spark=True,
            help="removes old snapshots and their files (the action of `expire_snapshots`, without "
            "its deletion of files)",
            settings="`keep_for`, `keep_versions`; the retention settings of branches and tags apply "
            "to these",
            promises={name: (("planned", name), (name,)) for name in ("files", "bytes")},
        ),
    },
    summarize=removed_files,
    order=60,
    plan=_plan,
    iceberg_files=IcebergFiles.ALL_MANIFESTS,
)
