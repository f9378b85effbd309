"""Starts the server by which TensorFlow connects the processes of a group."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

_JOB = "worker"


def start(addresses: Sequence[str], rank: int, timeout: float) -> tf.distribute.Strategy:
    """Returns when all processes are connected; the result owns the server."""
    milliseconds = max(1, round(1000 * timeout))
    # The type of a ConfigProto, taken from an instance: its Python module moved between versions.
    jobs = tf.compat.v1.ConfigProto().experimental.coordination_config.coordinated_job_list
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{_JOB}/replica:0/task:0",
        cluster_register_timeout_in_ms=milliseconds,
        # TensorFlow's own ten seconds are too few for a process that traces a large model.
        heartbeat_timeout_in_ms=max(10_000, milliseconds),
        coordinated_jobs=[jobs.add(name=_JOB, num_tasks=len(addresses))],
    )
    with _other_threads_running():
        return tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=tf.distribute.cluster_resolver.SimpleClusterResolver(
                tf.train.ClusterSpec({_JOB: list(addresses)}),
                task_type=_JOB,
                task_id=rank,
                rpc_layer="grpc",
            ),
            communication_options=tf.distribute.experimental.CommunicationOptions(
                implementation=tf.distribute.experimental.CommunicationImplementation.RING,
                timeout_seconds=timeout,
            ),
        )


@contextlib.contextmanager
def _other_threads_running() -> Iterator[None]:
    """Lets other threads of Python run while TensorFlow connects the processes.

    TensorFlow holds Python's lock in this call (seen with 2.21), for as long as another
    process does not come.  A call through ctypes releases it.
    """
    library = _library()
    if library is None:
        yield
        return
    own = pywrap_tfe.TFE_EnableCollectiveOps
    pywrap_tfe.TFE_EnableCollectiveOps = functools.partial(_connect, library)
    try:
        yield
    finally:
        pywrap_tfe.TFE_EnableCollectiveOps = own


def _connect(library: ctypes.CDLL, handle: Any, server: bytes) -> None:
    """What `pywrap_tfe.TFE_EnableCollectiveOps` does."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    status = library.TF_NewStatus()
    try:
        library.TFE_EnableCollectiveOps(pointer(handle, None), server, len(server), status)
        code = library.TF_GetCode(status)
        text = library.TF_Message(status).decode(errors="replace")
    finally:
        library.TF_DeleteStatus(status)
    if code:
        raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, text)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """TensorFlow's C API; None where there is no such library."""
    found = pathlib.Path(tf.__file__).parent.glob("libtensorflow_cc.*")
    try:
        library = ctypes.CDLL(str(next(found)))
        of_status = [ctypes.c_void_p]
        for name, result, arguments in (
            ("TF_NewStatus", ctypes.c_void_p, []),
            ("TF_DeleteStatus", None, of_status),
            ("TF_GetCode", ctypes.c_int, of_status),
            ("TF_Message", ctypes.c_char_p, of_status),
            (
                "TFE_EnableCollectiveOps",
                None,
                [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p],
            ),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        return library
    except (OSError, StopIteration, AttributeError):
        return None
