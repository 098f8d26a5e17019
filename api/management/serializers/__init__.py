"""Serializers of requests, responses and query parameters, by resource."""
