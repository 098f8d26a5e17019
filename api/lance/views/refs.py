from lance_namespace_urllib3_client import models as m

from api.lance.operation import LanceOperation
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance import refs as lance_refs


class ListTableTags(LanceOperation):
    """List the tags of a table, by name."""

    response_model = m.ListTableTagsResponse
    query = ("page_token", "limit")

    def handle(self, actor: Principal, body: None, *, id: Identifier) -> m.ListTableTagsResponse:
        tags, token = lance_refs.list_tags(actor=actor, table=id, **self.page)
        return m.ListTableTagsResponse(
            tags={
                tag.name: m.TagContents(
                    version=tag.version,
                    branch=tag.branch or None,
                    manifest_size=tag.manifest_size,
                )
                for tag in tags
            },
            page_token=token,
        )


class GetTableTagVersion(LanceOperation):
    """Tell which version a tag names, and on which branch unless that is main."""

    request_model = m.GetTableTagVersionRequest
    response_model = m.GetTableTagVersionResponse

    def handle(
        self, actor: Principal, body: m.GetTableTagVersionRequest, *, id: Identifier
    ) -> m.GetTableTagVersionResponse:
        branch, version = lance_refs.resolve(actor=actor, table=id, tag=body.tag)
        return m.GetTableTagVersionResponse(version=version, branch=branch or None)


class CreateTableTag(LanceOperation):
    """Give a name to a version of main or of another branch."""

    request_model = m.CreateTableTagRequest
    response_model = m.CreateTableTagResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.CreateTableTagRequest, *, id: Identifier
    ) -> m.CreateTableTagResponse:
        transaction_id = lance_refs.create_tag(
            actor=actor,
            table=id,
            tag=body.tag,
            version=body.version,
            branch=branch_name(body.branch),
        )
        return m.CreateTableTagResponse(transaction_id=transaction_id)


class DeleteTableTag(LanceOperation):
    """Take a tag away. Its version stays."""

    request_model = m.DeleteTableTagRequest
    response_model = m.DeleteTableTagResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.DeleteTableTagRequest, *, id: Identifier
    ) -> m.DeleteTableTagResponse:
        transaction_id = lance_refs.delete_tag(actor=actor, table=id, tag=body.tag)
        return m.DeleteTableTagResponse(transaction_id=transaction_id)


class UpdateTableTag(LanceOperation):
    """Let a tag name another version."""

    request_model = m.UpdateTableTagRequest
    response_model = m.UpdateTableTagResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.UpdateTableTagRequest, *, id: Identifier
    ) -> m.UpdateTableTagResponse:
        transaction_id = lance_refs.update_tag(
            actor=actor,
            table=id,
            tag=body.tag,
            version=body.version,
            branch=branch_name(body.branch),
        )
        return m.UpdateTableTagResponse(transaction_id=transaction_id)


class ListTableBranches(LanceOperation):
    """List the branches of a table beside main, by name."""

    response_model = m.ListTableBranchesResponse
    query = ("page_token", "limit")

    def handle(
        self, actor: Principal, body: None, *, id: Identifier
    ) -> m.ListTableBranchesResponse:
        branches, token = lance_refs.list_branches(actor=actor, table=id, **self.page)
        return m.ListTableBranchesResponse(
            branches={
                branch.name: m.BranchContents(
                    parent_branch=branch.parent or None,
                    parent_version=branch.parent_version,
                    create_at=branch.create_at,
                    manifest_size=branch.manifest_size,
                    metadata=branch.metadata or None,
                )
                for branch in branches
            },
            page_token=token,
        )


class CreateTableBranch(LanceOperation):
    """Begin a branch at a version of main or of another branch, by default at the newest."""

    request_model = m.CreateTableBranchRequest
    response_model = m.CreateTableBranchResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.CreateTableBranchRequest, *, id: Identifier
    ) -> m.CreateTableBranchResponse:
        transaction_id = lance_refs.create_branch(
            actor=actor,
            table=id,
            name=body.name,
            from_branch=branch_name(body.from_branch),
            from_version=body.from_version,
        )
        return m.CreateTableBranchResponse(transaction_id=transaction_id)


class DeleteTableBranch(LanceOperation):
    """Delete a branch with its files, unless a tag or another branch needs them."""

    request_model = m.DeleteTableBranchRequest
    response_model = m.DeleteTableBranchResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.DeleteTableBranchRequest, *, id: Identifier
    ) -> m.DeleteTableBranchResponse:
        transaction_id = lance_refs.delete_branch(actor=actor, table=id, name=body.name)
        return m.DeleteTableBranchResponse(transaction_id=transaction_id)
