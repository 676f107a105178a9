"""A scenario's own directory, and everything that must be gone when it ends: processes, mounts, files.

`Work` is a context manager. What it starts it ends by process id, and what is mounted below it, it unmounts, also after
Ctrl-C, SIGTERM or a failure. It never touches a process, mount or file that lies elsewhere.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# How long anything may take before it counts as hanging. Generous: CI shares two cores.
COMMAND_SECONDS = 900
READY_SECONDS = 30
STOP_SECONDS = 20


class Failure(Exception):
    """Something did not go as it must; the message is for people."""


def handle_signals():
    """Turns SIGTERM and SIGHUP into an exception, as Ctrl-C is one, so that `Work` cleans up."""

    def stop(number, _frame):
        raise KeyboardInterrupt(f"signal {number}")

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)


def shown(argv):
    """A command as a person would type it."""
    return " ".join(str(word) for word in argv)


def run(*argv, ok=(0,), seconds=COMMAND_SECONDS, **options):
    """Runs a command to its end and returns it with its output as text. `ok`: exit codes allowed, None for all."""
    options.setdefault("stdin", subprocess.DEVNULL)
    if "stdout" not in options:
        options["stdout"] = subprocess.PIPE
    if "stderr" not in options:
        options["stderr"] = subprocess.PIPE
    try:
        done = subprocess.run([str(word) for word in argv], text=True, errors="replace", timeout=seconds, **options)
    except FileNotFoundError as error:
        raise Failure(f"{argv[0]} cannot be started: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise Failure(f"{shown(argv)} has not ended after {seconds} s\n{error.stderr or ''}") from error
    if ok is not None and done.returncode not in ok:
        tail = ((done.stdout or "") + (done.stderr or ""))[-4000:]
        raise Failure(f"{shown(argv)} ended with {done.returncode}:\n{tail}")
    return done


def wait_for(condition, what, seconds=READY_SECONDS):
    """Waits until `condition()` is true, and returns what it gave."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f"{what}: not after {seconds} s")
        time.sleep(0.02)


def mounts_below(directory):
    """Mount points at or below a directory, the deepest and newest first."""
    prefix = os.fsencode(str(directory))
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        point = line.split(b" ")[4].replace(b"\\040", b" ").replace(b"\\011", b"\t").replace(b"\\134", b"\\")
        if point == prefix or point.startswith(prefix + b"/"):
            found.append(point)
    return found[::-1]


class Process:
    """A daemon of a scenario. Its output goes to a log file, whose end is shown when something fails."""

    def __init__(self, name, argv, log, env=None):
        self.name, self.log = name, log
        self.argv = [str(word) for word in argv]
        with open(log, "ab") as sink:
            self.popen = subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env, start_new_session=True
            )

    @property
    def pid(self):
        return self.popen.pid

    def running(self):
        return self.popen.poll() is None

    def log_tail(self):
        return self.log.read_text(errors="replace")[-3000:]

    def wait_ready(self, condition, seconds=READY_SECONDS):
        """Waits until the daemon is ready, or says why it never was."""

        def ready():
            if not self.running():
                raise Failure(f"{self.name} ended with {self.popen.returncode}:\n{self.log_tail()}")
            return condition()

        try:
            return wait_for(ready, f"{self.name} is ready", seconds)
        except Failure as failure:
            raise Failure(f"{failure}\n{self.log_tail()}") from failure

    def kill(self):
        """kill -9."""
        self.popen.kill()
        self.popen.wait()

    def stop(self):
        """Asks it to end (SIGTERM) and waits; a daemon that does not end in time is killed, and that is a failure."""
        if self.running():
            self.popen.terminate()
            try:
                self.popen.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired as error:
                self.kill()
                raise Failure(f"{self.name} did not end on SIGTERM\n{self.log_tail()}") from error
        return self.popen.returncode


class Work:
    """The directory of one scenario. `keep` leaves it, with what runs in it, for a person to look at."""

    def __init__(self, name, keep=False):
        root = Path(os.environ.get("DSEC_LAB_DIR") or tempfile.gettempdir() + "/dsec-lab").absolute()
        root.mkdir(parents=True, exist_ok=True)
        self.cache = root / "cache"
        self.path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))
        # Daemons and sandboxes of other users must be able to pass.
        self.path.chmod(0o755)
        self.keep = keep
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _trace):
        if self.keep:
            return False
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        problems = self._clean()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if problems and kind is None:
            raise Failure("\n".join(problems))
        for problem in problems:
            print(f"clean-up: {problem}", file=sys.stderr)
        return False

    def directory(self, name):
        """A directory of this scenario, made when it is not there."""
        path = self.path / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def start(self, name, argv, env=None):
        """Starts a daemon that ends with the scenario."""
        logs = self.directory("log")
        process = Process(name, argv, logs / f"{name}.log", env)
        self.processes.append(process)
        return process

    def _clean(self):
        problems = []
        for process in reversed(self.processes):
            try:
                process.stop()
            except Failure as failure:
                problems.append(str(failure))
        for point in mounts_below(self.path):
            if os.path.basename(os.fsencode(point)) not in self.own_mounts:
                problems.append(f"{os.fsdecode(point)} was still mounted")
            subprocess.run(["umount", "--lazy", point], check=False, stderr=subprocess.DEVNULL)
        # Before 3.12 rmtree has no hook that can repair; directories of mode 0 stop nobody who is root.
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            problems.append(f"{self.path} could not be removed")
        return problems

    # Mounts that scenarios make themselves, for the clean-up not to call them left behind.
    own_mounts = frozenset({b"ext4", b"tiny"})
