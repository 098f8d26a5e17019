"""Errors of the sign-on.

ClientError
└── SignOnFailed            the server or the issuer does not support it, or answers against the rules
    ├── SignOnRefused       the person or the issuer refused, or the sign-on has ended
    └── SignOnUnavailable   the server or the issuer does not answer
"""

from monodon.client import ClientError


class SignOnFailed(ClientError):
    pass


class SignOnRefused(SignOnFailed):
    pass


class SignOnUnavailable(SignOnFailed):
    pass
