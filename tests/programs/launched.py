"""A worker without TensorFlow, for the launcher's tests."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

config = json.loads(os.environ["TF_CONFIG"])
rank = config["task"]["index"]


def until_ended():
    while True:
        signal.pause()


def show():
    print(json.dumps([config, sys.argv[2:], os.environ.get("TF_CPP_MIN_LOG_LEVEL")]))
    print(f"to stderr from {rank}", file=sys.stderr)


def redraw():
    for step in range(1000):
        sys.stdout.write(f"\r{step}/1000")
        sys.stdout.flush()
    print("\r1000/1000 done\r\nno newline", end="")


def bar():
    sys.stdout.write("\r10%")
    sys.stdout.flush()
    if rank == 0:
        open(sys.argv[2]).close()  # a FIFO: waits until somebody opens the other end
    print("\r20%")


def fail():
    if rank == 1:
        sys.exit(7)
    until_ended()


def complain():
    if rank == 1:
        print("this went wrong\n\n", file=sys.stderr, flush=True)
        sys.exit(3)
    until_ended()


def lay_to():
    """Worker 1 ends first and names worker 0, which ends later, by KeyboardInterrupt."""
    if rank == 1:
        with open(sys.argv[2], "w") as fifo:
            fifo.write(str(os.getpid()))
        sentence = "Worker 1 of 2 cannot go on, worker 0 failed: KeyboardInterrupt; start."
        print(f"RuntimeError: {sentence}", file=sys.stderr, flush=True)
        sys.exit(1)
    with open(sys.argv[2]) as fifo:
        first = int(fifo.read())
    with contextlib.suppress(ProcessLookupError):  # once the launcher knows of its end
        while True:
            os.kill(first, 0)
    print("KeyboardInterrupt", file=sys.stderr, flush=True)
    sys.exit(130)


def signalled():
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until_ended()


def stubborn():
    """Does not listen to SIGTERM and has a child that does not either."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(json.dumps([os.getpid(), child.pid]), flush=True)
    if rank == 1:
        sys.exit(9)
    until_ended()


def end_launcher():
    """Sends the launcher a signal once both workers are there to be ended."""
    if rank == 1:
        os.kill(os.getppid(), int(sys.argv[2]))
    until_ended()


def orphan():
    with open(sys.argv[2], "w") as file:
        file.write(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    until_ended()


def orphans():
    """Worker 1 kills the launcher when it has written down both workers and their namespaces."""
    me = json.dumps([os.getpid(), os.readlink("/proc/self/ns/net")])
    with open(sys.argv[2], "r" if rank else "w") as fifo:  # waits until the other opens it too
        first = fifo.read() if rank else fifo.write(me)
    if rank == 1:
        with open(sys.argv[3], "w") as file:
            file.write(f"[{first}, {me}]")
        os.kill(os.getppid(), signal.SIGKILL)
    until_ended()


def surroundings():
    """The network that a worker sees, and whether it reaches a port of the launcher's machine."""
    addresses = config["cluster"]["worker"]
    host, _, port = addresses[rank].rpartition(":")
    with socket.create_server((host, int(port))) as server:
        bound = "{}:{}".format(*server.getsockname())
    outside = socket.socket()
    outside.settimeout(5)
    found = {
        "addresses": addresses,
        "bound": bound,
        "name": socket.gethostname(),
        "interfaces": sorted(name for _, name in socket.if_nameindex()),
        "namespace": os.readlink("/proc/self/ns/net"),
        "outside": outside.connect_ex(("127.0.0.1", int(sys.argv[2]))) == 0,
        "user": os.getuid(),
    }
    print(json.dumps(found))


def told():
    """What the worker finds around it, and the command lines of those that have started it."""
    lines, pid = [], os.getppid()
    while pid > 1 and len(lines) < 3 and "STAND_IN" in os.environ:
        with open(f"/proc/{pid}/cmdline") as file:
            lines.append(file.read())
        if pid == int(os.environ["STAND_IN"]):
            break
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    found = {"config": config, "folder": os.getcwd(), "python": sys.executable, "lines": lines}
    print(json.dumps({**found, "environment": dict(os.environ)}))


def asked():
    """Worker 1 fails once worker 0 waits for a SIGTERM."""
    if rank == 1:
        open(sys.argv[2]).close()  # a FIFO: waits until worker 0 opens the other end
        sys.exit(7)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("asked to end"))
    open(sys.argv[2], "w").close()
    until_ended()


def insist():
    """Worker 0 sends the launcher SIGINT when this asks it to end, because worker 1 has failed."""
    if rank == 0:

        def told_to_end(number, frame):
            os.kill(os.getppid(), signal.SIGINT)
            sys.exit("insisted")

        signal.signal(signal.SIGTERM, told_to_end)
    open(sys.argv[2], "r" if rank else "w").close()  # a FIFO: waits until the other opens it too
    if rank == 1:
        sys.exit(7)
    until_ended()


def wait():
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(json.dumps([os.getpid(), child.pid]), flush=True)
    until_ended()


def end():
    """Worker 1 sends a launcher somewhere else a signal, after both have said who they are."""
    print(json.dumps([os.getpid()]), flush=True)
    open(sys.argv[4], "r" if rank else "w").close()  # a FIFO: waits until the other opens it too
    if rank == 1:
        os.kill(int(sys.argv[2]), int(sys.argv[3]))
    until_ended()


def lose():
    """The connection by which this worker was started is lost."""
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print(json.dumps([os.getpid(), child.pid]), flush=True)
    os.kill(int(os.environ["STAND_IN"]), signal.SIGKILL)
    until_ended()


globals()[sys.argv[1]]()
