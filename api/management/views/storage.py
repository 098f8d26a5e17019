"""Storage profiles, which let tables be in object stores, and the profiles of namespaces."""

from functools import partial

from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from api.management.serializers import storage as s
from api.management.viewsets import ManagementViewSet
from catalog.errors import StorageTestNotFound
from catalog.services.storage import profile_bindings
from catalog.services.storage import profile_operations as profiles
from catalog.services.storage.profile_checks import tests as profile_tests


class StorageProfileViewSet(ManagementViewSet):
    lookup_field = "profile"
    lookup_value_regex = "[^/]+"
    results_field = "storage_profiles"
    resource = "StorageProfile"
    operation_ids = {
        "rotate": "RotateStorageProfileKey",
        "preview": "PreviewStorageProfile",
        "test": "TestStorageProfile",
    }
    dry_actions = frozenset({"preview"})

    @extend_schema(responses=s.StorageProfileSerializer(many=True))
    def list(self, request: Request) -> Response:
        """List storage profiles by name."""
        return self.page(
            partial(profiles.list_profiles, actor=self.principal), s.StorageProfileSerializer
        )

    @extend_schema(
        request=s.CreateStorageProfileSerializer, responses={201: s.StorageProfileSerializer}
    )
    def create(self, request: Request) -> Response:
        """Create a storage profile.

        The store is not contacted. No response contains the secret of the key.
        """
        body = self.read_body(s.CreateStorageProfileSerializer)
        row = profiles.create_profile(actor=self.principal, **body)
        return Response(s.StorageProfileSerializer.represent(row), status=201)

    @extend_schema(responses=s.StorageProfileSerializer)
    def retrieve(self, request: Request, profile: str) -> Response:
        """Get a storage profile, without its secret."""
        row = profiles.find_profile(actor=self.principal, name=profile)
        return Response(s.StorageProfileSerializer.represent(row))

    @extend_schema(request=s.UpdateStorageProfileSerializer, responses=s.StorageProfileSerializer)
    def partial_update(self, request: Request, profile: str) -> Response:
        """Change a storage profile.

        Omitted fields keep their values. A change that would leave tables outside the roots is refused;
        one that may take their storage away needs `confirm`.
        """
        body = self.read_body(s.UpdateStorageProfileSerializer)
        confirm = body.pop("confirm")
        row = profiles.update_profile(
            actor=self.principal, name=profile, changes=profiles.Changes(**body), confirm=confirm
        )
        return Response(s.StorageProfileSerializer.represent(row))

    def destroy(self, request: Request, profile: str) -> Response:
        """Delete a storage profile that no table and no namespace needs.

        Tables in the trash count. Nothing in the store is removed.
        """
        profiles.delete_profile(actor=self.principal, name=profile)
        return Response(status=204)

    @extend_schema(request=s.PreviewStorageProfileSerializer, responses=s.StorageImpactSerializer)
    @action(detail=True, methods=["post"])
    def preview(self, request: Request, profile: str) -> Response:
        """Show what a change of a storage profile, or its deletion, would mean."""
        changes = self.read_body(s.PreviewStorageProfileSerializer)["changes"]
        if changes is None:
            impact = profiles.preview_deletion(actor=self.principal, name=profile)
        else:
            impact = profiles.preview_update(actor=self.principal, name=profile, changes=changes)
        return Response(s.StorageImpactSerializer.represent(impact))

    @extend_schema(request=None, responses={202: s.StorageTestSerializer})
    @action(detail=True, methods=["post"])
    def test(self, request: Request, profile: str) -> Response:
        """Test a storage profile in the background.

        The test writes objects below the first root, and removes them. Its results grow while it runs: get
        the test until its status is neither `queued` nor `running`.
        """
        row = profile_tests.start_test(actor=self.principal, name=profile)
        return Response(s.StorageTestSerializer.represent(row), status=202)

    @extend_schema(request=s.StorageKeySerializer, responses=s.StorageProfileSerializer)
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, profile: str) -> Response:
        """Replace the key of a storage profile.

        Disable the previous key at the store afterwards.
        """
        key = self.read_body(s.StorageKeySerializer)
        row = profiles.rotate_key(actor=self.principal, name=profile, key=key)
        return Response(s.StorageProfileSerializer.represent(row))


class StorageTestViewSet(ManagementViewSet):
    lookup_field = "test"
    lookup_value_regex = "[^/]+"
    results_field = "tests"
    resource = "StorageTest"

    @extend_schema(responses=s.StorageTestSerializer(many=True))
    def list(self, request: Request, profile: str) -> Response:
        """List the tests of a storage profile, newest first."""
        rows = partial(profile_tests.list_tests, actor=self.principal, name=profile)
        return self.page(rows, s.StorageTestSerializer)

    @extend_schema(responses=s.StorageTestSerializer)
    def retrieve(self, request: Request, profile: str, test: str) -> Response:
        """Get a test of a storage profile, with the results of the checks that have ended."""
        row = profile_tests.find_test(
            actor=self.principal, name=profile, test=self.number("test", StorageTestNotFound)
        )
        return Response(s.StorageTestSerializer.represent(row))


class NamespaceStorageViewSet(ManagementViewSet):
    resource = "NamespaceStorageProfile"

    @extend_schema(responses=s.NamespaceStorageSerializer)
    def retrieve(self, request: Request, id: str) -> Response:
        """Get the storage of new tables of a namespace."""
        storage = profile_bindings.storage_of(actor=self.principal, namespace=self.identifier)
        return Response(s.NamespaceStorageSerializer.represent(storage))

    @extend_schema(request=s.BindStorageProfileSerializer, responses=s.NamespaceStorageSerializer)
    def update(self, request: Request, id: str) -> Response:
        """Bind a namespace to a storage profile.

        New tables of the namespace, and of those below it, are placed below the first root of the profile.
        Existing tables stay where they are.
        """
        body = self.read_body(s.BindStorageProfileSerializer)
        storage = profile_bindings.bind_namespace(
            actor=self.principal, namespace=self.identifier, **body
        )
        return Response(s.NamespaceStorageSerializer.represent(storage))

    def destroy(self, request: Request, id: str) -> Response:
        """Let a namespace inherit its storage. Existing tables stay where they are."""
        profile_bindings.unbind_namespace(actor=self.principal, namespace=self.identifier)
        return Response(status=204)
