variable "namespace" {
  description = "The names from the root down. The parent must exist."
  type        = list(string)
}

variable "properties" {
  description = "Properties of the namespace. Others that it has stay as they are."
  type        = map(string)
  default     = {}
}

variable "owner" {
  description = "The principal that owns the namespace. Null: the owner stays as it is."
  type        = string
  default     = null
}

variable "description" {
  description = "Markdown."
  type        = string
  default     = ""
}

variable "sensitivity" {
  description = "public, internal, confidential or restricted. Null: inherited."
  type        = string
  default     = null
}

variable "labels" {
  description = "Values by key of the label."
  type        = map(set(string))
  default     = {}
}

variable "roles" {
  description = "A role by principal: browser, reader, editor, maintainer, steward or owner."
  type        = map(string)
  default     = {}
}

variable "maintenance" {
  description = "Values of the maintenance policy that are set on the namespace. Null: there is no policy."
  type        = any
  default     = null
}

variable "storage_profile" {
  description = "The storage profile of new tables. Null: inherited."
  type        = string
  default     = null
}

variable "retention_seconds" {
  description = "The retention time of dropped tables. Null: inherited."
  type        = number
  default     = null
}

variable "protected" {
  description = "Whether the namespace is protected from being dropped."
  type        = bool
  default     = false
}
