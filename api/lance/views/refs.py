"""Tags and branches: names for versions, and lines of versions beside main."""

from lance_namespace_urllib3_client import models as m

from api.lance.operation import LanceOperation
from catalog.access import Principal
from catalog.formats.lance.naming import branch_name
from catalog.identifiers import Identifier
from catalog.services.lance.refs import branches as lance_branches
from catalog.services.lance.refs import tags as lance_tags


class ListTableTags(LanceOperation):
    """List the tags of a table.

    Returns the version and branch of each tag, sorted by name, a page at a time.
    """

    needs_data = True
    response_model = m.ListTableTagsResponse
    query = ("page_token", "limit")

    def handle(self, actor: Principal, body: None, *, id: Identifier) -> m.ListTableTagsResponse:
        tags, token = lance_tags.list_tags(actor=actor, table=id, **self.page)
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
    """Return the version that a tag names.

    The answer also has the branch, unless it is ``main``.
    """

    needs_data = True
    request_model = m.GetTableTagVersionRequest
    response_model = m.GetTableTagVersionResponse

    def handle(
        self, actor: Principal, body: m.GetTableTagVersionRequest, *, id: Identifier
    ) -> m.GetTableTagVersionResponse:
        branch, version = lance_tags.resolve(actor=actor, table=id, tag=body.tag)
        return m.GetTableTagVersionResponse(version=version, branch=branch or None)


class CreateTableTag(LanceOperation):
    """Create a tag for a version of a table.

    The version may be on ``main`` or on another branch. Versions that have a tag are not cleaned
    up.
    """

    needs_data = True
    request_model = m.CreateTableTagRequest
    response_model = m.CreateTableTagResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.CreateTableTagRequest, *, id: Identifier
    ) -> m.CreateTableTagResponse:
        transaction_id = lance_tags.create_tag(
            actor=actor,
            table=id,
            tag=body.tag,
            version=body.version,
            branch=branch_name(body.branch),
        )
        return m.CreateTableTagResponse(transaction_id=transaction_id)


class DeleteTableTag(LanceOperation):
    """Delete a tag of a table.

    The version that it names stays.
    """

    needs_data = True
    request_model = m.DeleteTableTagRequest
    response_model = m.DeleteTableTagResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.DeleteTableTagRequest, *, id: Identifier
    ) -> m.DeleteTableTagResponse:
        transaction_id = lance_tags.delete_tag(actor=actor, table=id, tag=body.tag)
        return m.DeleteTableTagResponse(transaction_id=transaction_id)


class UpdateTableTag(LanceOperation):
    """Move a tag to another version.

    The version may be on another branch. The tag must exist.
    """

    needs_data = True
    request_model = m.UpdateTableTagRequest
    response_model = m.UpdateTableTagResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.UpdateTableTagRequest, *, id: Identifier
    ) -> m.UpdateTableTagResponse:
        transaction_id = lance_tags.update_tag(
            actor=actor,
            table=id,
            tag=body.tag,
            version=body.version,
            branch=branch_name(body.branch),
        )
        return m.UpdateTableTagResponse(transaction_id=transaction_id)


class ListTableBranches(LanceOperation):
    """List the branches of a table.

    Returns the branches other than ``main``, sorted by name, a page at a time.
    """

    needs_data = True
    response_model = m.ListTableBranchesResponse
    query = ("page_token", "limit")

    def handle(
        self, actor: Principal, body: None, *, id: Identifier
    ) -> m.ListTableBranchesResponse:
        branches, token = lance_branches.list_branches(actor=actor, table=id, **self.page)
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
    """Create a branch of a table.

    The branch starts at a version of ``main`` or of another branch, by default at the newest
    version.
    """

    needs_data = True
    request_model = m.CreateTableBranchRequest
    response_model = m.CreateTableBranchResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.CreateTableBranchRequest, *, id: Identifier
    ) -> m.CreateTableBranchResponse:
        transaction_id = lance_branches.create_branch(
            actor=actor,
            table=id,
            name=body.name,
            from_branch=branch_name(body.from_branch),
            from_version=body.from_version,
        )
        return m.CreateTableBranchResponse(transaction_id=transaction_id)


class DeleteTableBranch(LanceOperation):
    """Delete a branch of a table.

    The branch's own files are removed. A branch that a tag or another branch needs is refused.
    """

    needs_data = True
    request_model = m.DeleteTableBranchRequest
    response_model = m.DeleteTableBranchResponse
    changes = True

    def handle(
        self, actor: Principal, body: m.DeleteTableBranchRequest, *, id: Identifier
    ) -> m.DeleteTableBranchResponse:
        transaction_id = lance_branches.delete_branch(actor=actor, table=id, name=body.name)
        return m.DeleteTableBranchResponse(transaction_id=transaction_id)
