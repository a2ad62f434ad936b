"""The commands of `holdfast pipeline`: one for each job, and `run`.

They are named by import path, so that the help of all of them loads none.
"""

from cyclopts import App, Parameter

from holdfast.spark.jobs import JOBS

__all__ = ["commands"]

commands = App(
    name="pipeline",
    help="Run jobs on Spark. Each can be killed and run again at any point.",
    help_format="plaintext",
    default_parameter=Parameter(show_default=False),
)
for _name, _help in JOBS.items():
    commands.command(f"holdfast.cli.pipeline.job_commands:{_name}", name=_name, help=_help)
commands.command("holdfast.cli.pipeline.run:run", name="run", help="Run the jobs of a file.")
