"""Single sign-on of a person with the device authorization grant (RFC 8628).

The server names an issuer and a public client. The person confirms a code in a browser, on any machine, and the issuer
gives tokens, which are in the profile. Tokens are sent only to the issuer's own origin and to the server of the profile.

Modules: ``requests`` (bounded requests), ``issuer`` (what the server and the issuer state), ``device`` (the sign-in), ``tokens``
(renewal and revocation).
"""
