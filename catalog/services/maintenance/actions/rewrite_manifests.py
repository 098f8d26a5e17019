"""Rewrites of the manifests of an Iceberg table."""

from catalog.maintenance_actions import IcebergFiles, Implementation, MaintenanceAction
from catalog.planning import Proposal, Statistics, is_worth_rewriting
from catalog.policies import ICEBERG, EffectivePolicy, Mode, Rule, Unit
from catalog.services.maintenance.actions.results import change_of


def _plan(statistics: Statistics, policy: EffectivePolicy) -> Proposal | None:
    s = statistics
    removed = s.manifests - s.rewritten_manifests
    if s.manifests < policy["min_manifests"] or not is_worth_rewriting(removed, s.manifests):
        return None
    return Proposal(
        f"{s.rewritten_manifests} manifests can replace {s.manifests}",
        files_gone=removed,
        is_for_spark=True,
    )


ACTION = MaintenanceAction(
    key="rewrite_manifests",
    title="Rewrite manifests",
    help="Rewrites small manifests as fewer large ones.",
    icon="receipt_long",
    group="Iceberg",
    rules=(
        Rule("manifests", Unit.MODE, Mode.DRY_RUN, "Merge small manifests.", ICEBERG),
        Rule(
            "min_manifests",
            Unit.COUNT,
            50,
            "Merge when at least this many manifests exist.",
            ICEBERG,
            low=2,
        ),
    ),
    implementations={
        "iceberg": Implementation(
            run="catalog.services.maintenance.iceberg_actions.rewrite_manifests",
            takes_spark=True,
            help="merges small manifests (`rewrite_manifests`)",
            settings="`min_manifests`, if the rewrite saves at least a quarter of them",
            promises={"manifests": (("before", "rewritten_manifests"), ("after", "manifests"))},
        ),
    },
    summarize=change_of("manifests", "manifests"),
    order=50,
    plan=_plan,
    depends_on_files_only=True,
    replaced_files=("rewritten_manifests_count", "added_manifests_count"),
    iceberg_files=IcebergFiles.MANIFESTS,
)
