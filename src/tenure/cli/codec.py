"""`tenure codec …`: make a key; with the newest one, encrypt what is stored."""

from __future__ import annotations

from cyclopts import App

from tenure.cli.output import print_error, print_line, show_json
from tenure.cli.shared import Shared, app_of, operator, store_of
from tenure.errors import InvalidOption

codec = App(
    name="codec", help="Encryption at rest: make a key; with the newest one, encrypt what is stored.", help_epilogue=""
)
SHARED = Shared()


@codec.command
def key() -> int:
    """Print a new random key for AesSiv. Keep it where secrets are kept: without it the values are lost."""
    from tenure.codecs import AesSiv

    print_line(AesSiv.new_key())
    return 0


@codec.command
def rotate(*, shared: Shared = SHARED) -> int:
    """With the first key of the app's codec, encrypt everything that is stored. Without --app: TENURE_APP.

    Safe while workers run, and safe to interrupt: run it again to continue. First give the new key, as the first one,
    to every process. Once this ends with exit code 0, the old key can go. 1: some values need a key that is missing.
    """
    from tenure.app.backends import rotation, with_bucket
    from tenure.operations.audit import Trail

    app = app_of(shared, None)
    if app.codec is None:
        raise InvalidOption("the app has no codec: Tenure(codec=AesSiv(keys))")
    store = with_bucket(store_of(app.settings), app.settings)
    store.open()
    try:
        with Trail(store).recorded(operator(), "codec.rotate", app.codec.key) as said:
            *_, done = rotation(store, app.codec)
            said.append(f"{done.written:,} texts")
    finally:
        store.close()
    if shared.json:
        show_json({"key": app.codec.key, **done._asdict()})
    else:
        print_line(f"{done.jobs:,} jobs read, {done.written:,} texts encrypted with the key {app.codec.key}")
    if done.raced:
        print_error(f"{done.raced:,} texts changed meanwhile, or were locked: run it again")
    for why, count in sorted(done.unread.items()):
        print_error(f"{count:,} texts can't be read, and stay as they are: {why}")
    return 1 if done.raced or done.unread else 0
