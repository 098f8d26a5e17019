"""The lines that `make up` and `monodon up` print when the server is ready."""

from server.options import PROJECT


def lines(url: str, seconds: float) -> tuple[str, ...]:
    # The wheel has no Makefile and no examples.
    is_checkout = (PROJECT / "Makefile").is_file()
    first_step = "make demo" if is_checkout else f"monodon login {url}"
    effect = "loads real tables" if is_checkout else "asks for the API key; then: monodon ls"
    return (
        "",
        f"  Monodon is ready at {url}   (started in {seconds:.1f} s)",
        "",
        f"    admin    {url}/admin/",
        f"    guide    {url}/help/",
        f"    APIs     {url}/docs",
        f"    health   {url}/health/ready",
        f"    try      `{first_step}` in another terminal {effect}",
        "    stop     Ctrl-C",
        "",
    )
