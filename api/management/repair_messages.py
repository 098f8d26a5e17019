"""What the repair of a Lance table is asked with, and what it answers."""

from typing import Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from catalog.services.recovery.lance_repair import Repair


class RepairTableRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    dry_run: StrictBool = Field(default=False, description="Report, and change nothing.")


class BranchReportModel(BaseModel):
    """What the ledger and the storage of a Lance table hold of a branch."""

    branch: str = Field(description="Empty is main.")
    newest: int | None = Field(description="The newest version in the ledger.")
    fault: str = Field(description="Why it has to be repaired; empty: it is well.")
    last_whole: int | None = Field(description="The newest version whose files are all there.")
    missing: list[int] = Field(description="Versions in the ledger without a manifest.")
    unlisted: list[int] = Field(
        description="Versions in storage that are newer than the ledger's newest."
    )


class RepairReport(BaseModel):
    """What was found of a Lance table, and what was done about it."""

    branches: list[BranchReportModel]
    published: dict[str, int] = Field(
        description="The version that was published, or would be, by branch."
    )
    dry_run: bool
    transaction_id: UUID | None

    @classmethod
    def of(cls, found: Repair) -> Self:
        return cls.model_validate(
            {
                "branches": [
                    {name: getattr(branch, name) for name in BranchReportModel.model_fields}
                    for branch in found.branches
                ],
                "published": found.published,
                "dry_run": found.is_dry_run,
                "transaction_id": found.transaction_id,
            }
        )
