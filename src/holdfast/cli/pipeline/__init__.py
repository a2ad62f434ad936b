"""`holdfast pipeline`: one command for each job, and `run` for a file of jobs.

Commands are named by import path, so that `holdfast pipeline --help` loads none of them.
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
    commands.command(f"{__name__}.job_commands:{_name}", name=_name, help=_help)
commands.command(f"{__name__}.run:run", name="run", help="Run the jobs of a file.")
