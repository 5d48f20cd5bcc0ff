"""``pratique release``: describe, record, verify, review, sign, show, compare and stamp releases without a cluster; approve one in it.

One module per concern; this one only gives the commands their names.
"""

import typer

from pratique_cli.commands.release import approve, files, loading, review, signing

app = typer.Typer(
    help="Describe, record, verify, review, sign, show, compare, stamp and approve releases.", no_args_is_help=True
)
app.command("build")(loading.build)
app.command("record")(loading.record)
app.command("verify")(loading.verify)
app.command("review")(review.review)
app.command("show")(files.show)
app.command("diff")(files.diff)
app.command("stamp")(files.stamp)
app.command("approve")(approve.approve)
app.command("keygen")(signing.keygen)
app.command("sign")(signing.sign)
app.command("verify-signature")(signing.verify_signature)
