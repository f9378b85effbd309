"""The secret of the job: a text that its own processes know, and by which they know each other."""

from __future__ import annotations

import os

VARIABLE = "GRACE_TF_SECRET"
# mpirun of Open MPI 4 gives all processes of a job 128 bits of /dev/urandom under this name.  Where
# it has not made them, they are the number of the job, which everyone knows, and zeros.
_OF_MPIRUN, _KNOWN = "OMPI_MCA_orte_precondition_transports", "00000000"


def of_job(given: str | None = None) -> str:
    """The secret: `given`, else the launcher's, else that of mpirun; "" without any.

    No other scheduler gives its processes something that strangers cannot know: numbers of jobs,
    names of hosts and ports are public.
    """
    if given is not None:
        return given
    of_mpirun = os.environ.get(_OF_MPIRUN, "") if "OMPI_COMM_WORLD_RANK" in os.environ else ""
    return os.environ.get(VARIABLE, "") or ("" if _KNOWN in of_mpirun else of_mpirun)
