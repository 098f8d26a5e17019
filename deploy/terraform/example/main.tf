# Principals, a label, a storage profile and the namespaces of a shop. The provider reads the URL of the server
# and the API key from the environment variables MONODON_URL and MONODON_API_KEY.

terraform {
  required_version = ">= 1.11"
  required_providers {
    monodon = {
      source  = "terraform.local/monodon/monodon"
      version = "0.1.0"
    }
  }
}

provider "monodon" {}

variable "lake_secret" {
  description = "The secret access key of the bucket. It is neither in the state nor in plans."
  type        = string
  ephemeral   = true
}

# --- who -------------------------------------------------------------------------------------------

resource "monodon_principal" "analysts" {
  name        = "group:analysts"
  kind        = "group"
  description = "Read the tables of the shop"
}

resource "monodon_principal" "etl" {
  name        = "etl"
  kind        = "service"
  description = "Loads the shop every night"
}

resource "monodon_principal" "dashboards" {
  name = "dashboards"
  kind = "service"
}

resource "monodon_group_member" "dashboards" {
  group  = monodon_principal.analysts.name
  member = monodon_principal.dashboards.name
}

# --- what describes tables -------------------------------------------------------------------------

resource "monodon_label" "domain" {
  key         = "domain"
  description = "The team that answers questions"
  colour      = "blue"
  values      = ["finance", "sales"]
  applies_to  = ["namespace", "table"]
}

# --- where tables are ------------------------------------------------------------------------------

resource "monodon_storage_profile" "lake" {
  name          = "lake"
  kind          = "s3"
  roots         = ["s3://lake/tables"]
  region        = "us-east-1"
  endpoint      = "https://minio.example.com:9000"
  path_style    = true
  identity      = "key"
  key_id        = "AKIAEXAMPLE"
  key_secret    = var.lake_secret
  key_version   = 1 # increase it together with a new secret
  client_access = "signing"
}

# --- namespaces ------------------------------------------------------------------------------------

module "shop" {
  source            = "../modules/domain"
  namespace         = ["shop"]
  properties        = { cost_center = "4711" }
  owner             = monodon_principal.etl.name
  description       = "Orders and customers of the **shop**."
  sensitivity       = "internal"
  labels            = { (monodon_label.domain.key) = ["sales"] }
  storage_profile   = monodon_storage_profile.lake.name
  retention_seconds = 604800
  roles = {
    (monodon_principal.analysts.name) = "reader"
    (monodon_principal.etl.name)      = "editor"
  }
  maintenance = {
    compaction    = "on"
    keep_versions = 20
    window_from   = "01:00"
    window_to     = "05:00"
  }
}

module "reports" {
  source     = "../modules/domain"
  namespace  = concat(module.shop.namespace, ["reports.daily"])
  properties = { cost_center = "4712" }
  roles      = { (monodon_principal.analysts.name) = "editor" }
}
