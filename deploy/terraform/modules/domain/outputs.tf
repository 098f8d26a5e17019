output "namespace" {
  description = "The names of the namespace, which exists when this value is known."
  value       = monodon_namespace.this.namespace
}
