# A namespace of a team, with its rules: who may use it, where its tables are, and how they are maintained.

terraform {
  required_version = ">= 1.11"
  required_providers {
    monodon = {
      source = "terraform.local/monodon/monodon"
    }
  }
}

locals {
  # The roles of the admin. A role is only a name for its privileges: the server stores the privileges.
  roles = {
    browser    = ["browse"]
    reader     = ["read"]
    editor     = ["write", "create"]
    maintainer = ["read", "maintain"]
    steward    = ["manage"]
    owner      = ["all"]
  }
}

resource "monodon_namespace" "this" {
  namespace  = var.namespace
  properties = var.properties
}

resource "monodon_namespace_annotations" "this" {
  namespace   = monodon_namespace.this.namespace
  owner       = var.owner
  description = var.description
  sensitivity = var.sensitivity
  labels      = var.labels
}

resource "monodon_namespace_grant" "this" {
  for_each   = var.roles
  namespace  = monodon_namespace.this.namespace
  principal  = each.key
  privileges = local.roles[each.value]
}

resource "monodon_namespace_policy" "this" {
  count     = var.maintenance == null ? 0 : 1
  namespace = monodon_namespace.this.namespace
  values    = var.maintenance
}

resource "monodon_namespace_storage_profile" "this" {
  count     = var.storage_profile == null ? 0 : 1
  namespace = monodon_namespace.this.namespace
  profile   = var.storage_profile
}

resource "monodon_namespace_retention" "this" {
  count     = var.retention_seconds == null ? 0 : 1
  namespace = monodon_namespace.this.namespace
  seconds   = var.retention_seconds
}

resource "monodon_namespace_protection" "this" {
  count     = var.protected ? 1 : 0
  namespace = monodon_namespace.this.namespace
}
