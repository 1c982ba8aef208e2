"""The work of faults.sh: injects faults with strace and looks at what is left.

After every fault the target must be absent, or the old file, or whole; a command that failed must
have said so in one line with the right exit code and must have left nothing else behind.
"""

import argparse
import collections
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What a command can be told by the system about a file. Those before the program's own start (the
# loader's) are left out: no program of ours runs then.
FAILABLE = {
    "openat", "open", "read", "pread64", "write", "pwrite64", "fallocate", "ftruncate", "fsync", "fdatasync",
    "rename", "renameat", "renameat2", "flock", "statx", "fstat", "newfstatat", "stat", "statfs", "fstatfs",
    "access", "faccessat", "faccessat2", "getdents64", "lseek", "unlink", "unlinkat", "fcntl", "close", "dup",
    "readlink", "getcwd",
}
ERRORS = ["ENOSPC", "EIO", "EDQUOT", "EINTR"]
# Failing these says nothing about files: what a process is told about itself.
MEMORY = {"mmap", "munmap", "mprotect", "madvise", "brk", "mremap"}

counts = collections.Counter()
problems = []


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def problem(text):
    problems.append(text)
    print(f"FAILED: {text}", flush=True)


def run(argv, **more):
    env = {key: value for key, value in os.environ.items() if not key.startswith("MINFER_")}
    env["NO_COLOR"] = "1"
    env.pop("RUST_BACKTRACE", None)
    return subprocess.run(argv, capture_output=True, env=env, timeout=120, **more)


def traced(argv, inject=None):
    """Runs a command under strace; (result, the log's lines)."""
    with tempfile.NamedTemporaryFile("r", dir=work) as log:
        flags = ["-f", "-qq", "-o", log.name]
        flags += ["-e", f"inject={inject}"] if inject else []
        result = run(["strace", *flags, *argv])
        return result, log.read().splitlines()


def calls(argv):
    """How often each system call is made, and how often before the program's own start."""
    result, log = traced(argv)
    if result.returncode != 0:
        sys.exit(f"{argv}: {result.stderr.decode()}")
    all_calls, before = collections.Counter(), None
    for line in log:
        match = re.match(r"\d+\s+(?:<\.\.\. )?(\w+)", line)
        if not match or "resumed>" in line or "+++" in line or "---" in line:
            continue
        # The first thing that the Rust runtime does is to look at the standard streams.
        if before is None and match[1] == "poll":
            before = all_calls.copy()
        all_calls[match[1]] += 1
    return all_calls, before or collections.Counter()


class Job:
    """A command that writes one file, tried with and without an older file there."""

    def __init__(self, name, argv, target):
        self.name, self.argv, self.target = name, argv, Path(target)
        self.dir = self.target.parent
        self.old = b"an older file"

    def reset(self, replaces):
        for path in self.dir.iterdir():
            path.unlink()
        if replaces:
            self.target.write_bytes(self.old)

    def command(self, replaces):
        return self.argv + (["--force"] if replaces else [])

    def prepare(self):
        self.reset(False)
        result = run(self.command(False))
        if result.returncode != 0:
            sys.exit(f"{self.name}: {result.stderr.decode()}")
        self.whole = sha256(self.target)
        assert [p.name for p in self.dir.iterdir()] == [self.target.name]

    def state(self, replaces):
        """absent, old or whole; None for anything else."""
        if not self.target.exists():
            return None if replaces else "absent"
        found = self.target.read_bytes()
        if replaces and found == self.old:
            return "old"
        return "whole" if hashlib.sha256(found).hexdigest() == self.whole else None

    def others(self):
        return [path.name for path in self.dir.iterdir() if path != self.target]

    def check(self, what, replaces, result, killed):
        state = self.state(replaces)
        if state is None:
            counts["files lost"] += 1
            return problem(f"{what}: the target is neither absent nor old nor whole")
        text = result.stderr.decode(errors="replace")
        if killed:
            return None
        if self.others():
            # An unlink that fails leaves its file: there is nothing else to do about it.
            if "unlink" not in what:
                problem(f"{what}: left {self.others()}")
        if result.returncode == 0:
            counts["went on to success"] += 1
            if state != "whole":
                problem(f"{what}: exit 0, but the target is {state}")
        else:
            counts["ended in an error"] += 1
            lines = [line for line in text.splitlines() if line.startswith("error: ")]
            # A message that cannot be written is not there.
            written = not re.search(r" write ", what)
            if result.returncode not in (1, 3, 4, 5) or (written and len(lines) != 1) or "internal error" in text:
                problem(f"{what}: exit {result.returncode}: {text}")

    def order(self):
        """Write everything, sync the file, rename, sync the directory: in this order."""
        self.reset(False)
        _, log = traced(self.command(False))
        at = collections.defaultdict(list)
        for i, line in enumerate(log):
            match = re.match(r"\d+\s+(?:<\.\.\. )?(\w+)", line)
            # A call counts where it ended.
            if match and "<unfinished" not in line:
                at[match[1]].append(i)
        renames = at["rename"] + at["renameat"] + at["renameat2"]
        created = [i for i, line in enumerate(log) if ".tmp-" in line and "O_CREAT" in line]
        steps = [created[0], at["pwrite64"][-1], at["fsync"][0], renames[0], at["fsync"][-1]]
        if len(at["fsync"]) != 2 or len(renames) != 1 or steps != sorted(steps):
            problem(f"{self.name}: system calls in another order: {steps}")
        counts["orders of system calls checked"] += 1

    def errors(self, every):
        for replaces in (False, True):
            self.reset(replaces)
            totals, before = calls(self.command(replaces))
            turn = 0
            for call in sorted(FAILABLE & totals.keys()):
                nth = before[call]
                while True:
                    nth += 1
                    injected = False
                    for error in ERRORS:
                        turn += 1
                        if turn % every and nth <= totals[call]:
                            injected = True
                            continue
                        self.reset(replaces)
                        inject = f"{call}:error={error}:when={nth}"
                        result, log = traced(self.command(replaces), inject)
                        if any("(INJECTED)" in line for line in log):
                            injected = True
                            counts["system calls failed"] += 1
                            self.check(f"{self.name} {call} {nth} {error}", replaces, result, False)
                    if not injected:
                        break

    def kills(self, every):
        for replaces in (False, True):
            self.reset(replaces)
            totals, before = calls(self.command(replaces))
            turn = 0
            for call in sorted(totals):
                for nth in range(before[call] + 1, totals[call] + 1):
                    turn += 1
                    if turn % every:
                        continue
                    self.reset(replaces)
                    what = f"{self.name} {call} {nth} KILL"
                    result, _ = traced(self.command(replaces), f"{call}:signal=KILL:when={nth}")
                    if result.returncode == 0:
                        # Thread start-up and locks differ a little from run to run.
                        counts["kills that came too late"] += 1
                    else:
                        counts["processes killed"] += 1
                    self.check(what, replaces, result, True)
                    # Whatever was left, the next run succeeds and tidies up.
                    again = run(self.argv + ["--force"])
                    if again.returncode != 0 or self.state(False) != "whole" or self.others():
                        problem(f"{what}: the next run: {again.returncode} {self.others()} {again.stderr.decode()}")

    def lying_writes(self):
        """A disk that says it wrote and did not: reading back finds it."""
        self.reset(False)
        totals, before = calls(self.command(False))
        for nth in range(before["pwrite64"] + 1, totals["pwrite64"] + 1):
            self.reset(False)
            # The whole length is claimed, so that nobody writes the rest again.
            result, log = traced(self.command(False), f"pwrite64:retval=1:when={nth}")
            if not any("(INJECTED)" in line for line in log):
                continue
            counts["writes that did not happen"] += 1
            # A zero that was not written is a zero all the same.
            if result.returncode == 0 and self.state(False) == "whole":
                counts["writes that did not matter"] += 1
            elif result.returncode not in (1, 4) or self.state(False) != "absent" or self.others():
                problem(f"{self.name} write {nth} that did not happen: exit {result.returncode}")


SHORT_WRITES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
/* Every other write is interrupted, the others write about half of what they should. */
static int turn;
static size_t cut(int fd, size_t n) {
    if (fd <= 2 || n < 2) return n;
    if (__atomic_fetch_add(&turn, 1, __ATOMIC_RELAXED) % 2) { errno = EINTR; return 0; }
    return n / 2 + 1;
}
ssize_t write(int fd, const void *p, size_t n) {
    size_t k = cut(fd, n);
    if (n && !k) return -1;
    return ((ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write"))(fd, p, k);
}
ssize_t pwrite64(int fd, const void *p, size_t n, off_t at) {
    size_t k = cut(fd, n);
    if (n && !k) return -1;
    return ((ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64"))(fd, p, k, at);
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) { return pwrite64(fd, p, n, at); }
/* The same for reads. */
ssize_t pread64(int fd, void *p, size_t n, off_t at) {
    size_t k = cut(fd, n);
    if (n && !k) return -1;
    return ((ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread64"))(fd, p, k, at);
}
ssize_t pread(int fd, void *p, size_t n, off_t at) { return pread64(fd, p, n, at); }
"""


def short_writes(jobs):
    source, shim = work / "short.c", work / "short.so"
    source.write_text(SHORT_WRITES)
    built = run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"])
    if built.returncode != 0:
        print("SKIPPED: short reads and writes, no C compiler")
        return
    for job in jobs:
        job.reset(False)
        result = run(["env", f"LD_PRELOAD={shim}", *job.command(False)])
        counts["runs with short and interrupted reads and writes"] += 1
        if result.returncode != 0 or job.state(False) != "whole":
            problem(f"{job.name} with short writes: {result.returncode} {result.stderr.decode()}")


def full_disk(jobs):
    """A tmpfs with too little room: the message says how much is needed and how much there is."""
    script = 'mount -t tmpfs -o size=64k t "$1" && shift && { "$@"; code=$?; ls -A "$DIR" >&2; exit $code; }'
    probe = run(["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=64k t "$1"', "sh", str(jobs[0].dir)])
    for job in jobs:
        job.reset(False)
        if probe.returncode != 0:
            print(f"SKIPPED: full disk ({probe.stderr.decode().strip()})")
        else:
            env = f"DIR={job.dir}"
            result = run(["env", env, "unshare", "-rm", "sh", "-c", script, "sh", str(job.dir), *job.argv])
            lines = result.stderr.decode().splitlines()
            counts["full disks"] += 1
            wanted = r"error: .*: disk full: \d+ bytes \(.*\) needed, \d+ bytes \(.*\) available$"
            if result.returncode != 4 or len(lines) != 1 or not re.match(wanted, lines[0]):
                problem(f"{job.name} on a full disk: {result.returncode} {lines}")
        limited = run(["sh", "-c", 'ulimit -f 32; exec "$@"', "sh", *job.argv])
        lines = limited.stderr.decode().splitlines()
        counts["file-size limits"] += 1
        wanted = r"error: .*: file-size limit: \d+ bytes \(.*\) needed, \d+ bytes \(.*\) allowed \(ulimit -f\)$"
        if limited.returncode != 4 or len(lines) != 1 or not re.match(wanted, lines[0]) or list(job.dir.iterdir()):
            problem(f"{job.name} under ulimit -f: {limited.returncode} {lines}")


def generate(mpk, n=24, **more):
    argv = [str(bin_dir / "minfer-run"), str(mpk), "--ids", ids, "-n", str(n), "--temp", "0", "--device", "cpu",
            "-t", "1", "--json"]
    return run(argv, **more)


def tokens(result):
    match = re.search(rb'"token_ids":\s*(\[[^\]]*\])', result.stdout)
    return match[1] if match else None


def readers(pack, mpk):
    """Readers beside each other, beside a packer, in a directory that nobody may write to."""
    alone = generate(mpk)
    expected = alone.stdout and tokens(alone)
    if alone.returncode != 0 or not expected:
        return problem(f"minfer-run: {alone.returncode} {alone.stderr.decode()} {alone.stdout.decode()}")
    argv = [str(bin_dir / "minfer-run"), str(mpk), "--ids", ids, "-n", "24", "--temp", "0", "--device", "cpu", "-t", "1",
            "--json"]
    eight = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(8)]
    for reader in eight:
        out, err = reader.communicate(timeout=300)
        counts["concurrent readers"] += 1
        if reader.returncode != 0 or expected not in out:
            problem(f"one of eight readers: {reader.returncode} {err.decode()}")
    # The packer replaces the file while others read it.
    for _ in range(4):
        some = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
        while any(reader.poll() is None for reader in some):
            if run(pack + ["--force"]).returncode != 0:
                problem("packing under readers")
            counts["files replaced under readers"] += 1
        for reader in some:
            out, err = reader.communicate()
            if reader.returncode != 0 or expected not in out:
                problem(f"a reader whose file was replaced: {reader.returncode} {err.decode()}")
    # Nothing is written beside the model, nor has it to be writable; no right but reading is needed.
    closed = work / "closed"
    closed.mkdir()
    shutil.copy(mpk, closed / "m.mpk")
    (closed / "m.mpk").chmod(0o444)
    closed.chmod(0o555)
    for path in (work, *work.parents):
        if path != Path("/") and path.stat().st_uid == os.getuid() and path.is_relative_to(tempfile.gettempdir()):
            path.chmod(path.stat().st_mode | 0o055)
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    prefixes = [[]]
    if os.getuid() == 0 and shutil.which("setpriv"):
        if run(as_nobody + [str(bin_dir / "minfer-verify"), "--version"]).returncode == 0:
            prefixes.append(as_nobody)
        else:
            # The build lies where others may not look.
            shutil.copytree(bin_dir, work / "bin", ignore=lambda d, names: [n for n in names if not n.startswith("minfer-") or "." in n])
            if run(as_nobody + [str(work / "bin/minfer-verify"), "--version"]).returncode == 0:
                prefixes.append(as_nobody)
            else:
                print("SKIPPED: another user, who may not run the binaries here")
    else:
        print("SKIPPED: another user, this needs root and setpriv")
    shutil.copy(ids, work / "ids.json")
    (work / "ids.json").chmod(0o444)
    for prefix in prefixes:
        where = work / "bin" if prefix and (work / "bin").exists() else bin_dir
        readers = [
            [str(where / "minfer-run"), str(closed / "m.mpk"), "--ids", str(work / "ids.json"), "-n", "4", "--temp", "0",
             "--device", "cpu"],
            [str(where / "minfer-verify"), str(closed / "m.mpk")],
        ]
        for reader in readers:
            result = run(prefix + reader, cwd="/")
            counts["readers of a read-only directory"] += 1
            if result.returncode != 0:
                problem(f"{prefix + reader}: {result.returncode} {result.stderr.decode()}")
        # And whoever may not write is told so.
        if prefix:
            result = run(prefix + [str(where / "minfer-unpack"), str(closed / "m.mpk")], cwd="/")
            if result.returncode != 4 or b"Permission denied" not in result.stderr:
                problem(f"unpacking where one may not write: {result.returncode} {result.stderr.decode()}")
            dry = run(prefix + [str(where / "minfer-pack"), "-n", str(closed / "m.mpk"), str(closed / "o.mpk")], cwd="/")
            if dry.returncode != 4 or b"Permission denied" not in dry.stderr:
                problem(f"a dry run where one may not write: {dry.returncode} {dry.stderr.decode()}")
    if sorted(os.listdir(closed)) != ["m.mpk"]:
        problem(f"written beside the model: {os.listdir(closed)}")
    closed.chmod(0o755)


def truncation(mpk):
    """A file that is cut short while it runs ends the reader in one line and exit 4."""
    for _ in range(3):
        copy = work / "shrinks.mpk"
        shutil.copy(mpk, copy)
        argv = [str(bin_dir / "minfer-run"), str(copy), "--ids", ids, "-n", "200000", "-c", "200000", "--ignore-eos", "--temp", "0",
                "--device", "cpu", "-t", "1", "--json", "--progress", "none"]
        reader = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(0.3)
        if reader.poll() is not None:
            out, err = reader.communicate()
            problem(f"minfer-run ended before its file was cut: {reader.returncode} {err.decode()}")
            return
        os.truncate(copy, 4096)
        _, err = reader.communicate(timeout=120)
        lines = [line for line in err.decode().splitlines() if line.startswith("error: ")]
        counts["files cut short under a reader"] += 1
        if reader.returncode != 4 or len(lines) != 1 or "became shorter" not in lines[0]:
            problem(f"minfer-run while its file was cut: {reader.returncode} {err.decode()}")


def names(gguf):
    """Spaces, non-ASCII, names of 255 bytes, newlines, a leading dash: pack, verify, unpack, run."""
    for stem in ["a model v1", "\u017de\u013eko \u6a21\u578b", "x" * 250, "\u00e9" * 125, "new\nline", "-dash", "$(x) 'q'"]:
        place = work / "names" / (stem[:40] + " d\u00efr")
        place.mkdir(parents=True)
        source = place / f"{stem}.gguf"
        shutil.copy(gguf, source)
        mpk = source.with_suffix(".mpk")
        again = place / (("y" * 250) + ".gguf")
        steps = [["minfer-pack", "--", str(source.name)], ["minfer-verify", "--", mpk.name],
                 ["minfer-unpack", "--", mpk.name, again.name],
                 ["minfer-run", "--ids", ids, "-n", "2", "--device", "cpu", "--", mpk.name]]
        for program, *args in steps:
            result = run([str(bin_dir / program), *args], cwd=place)
            counts["commands with odd names"] += 1
            if result.returncode != 0:
                problem(f"{program} {args}: {result.returncode} {result.stderr.decode()}")
        if sha256(again) != sha256(source):
            problem(f"{stem}: other bytes came back")


def main():
    global work, bin_dir, ids
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--ids", required=True)
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    bin_dir, ids = Path(args.bin).resolve(), str(Path(args.ids).resolve())
    work = Path(tempfile.mkdtemp(prefix="minfer-faults-"))
    start = time.time()
    try:
        gguf = work / "m.gguf"
        shutil.copy(args.gguf, gguf)
        (work / "p").mkdir()
        (work / "u").mkdir()
        (work / "readers").mkdir()
        mpk = work / "m.mpk"
        pack = [str(bin_dir / "minfer-pack"), "-q", "-t", "1", str(gguf)]
        if run(pack + [str(mpk)]).returncode != 0:
            sys.exit("packing failed")
        unpack = [str(bin_dir / "minfer-unpack"), "-q", "-t", "1", str(mpk)]
        jobs = [Job("pack", pack + [str(work / "p/out.mpk")], work / "p/out.mpk"),
                Job("unpack", unpack + [str(work / "u/out.gguf")], work / "u/out.gguf")]
        source, packed = sha256(gguf), sha256(mpk)
        if run(["strace", "-o", str(work / "probe"), "true"]).returncode != 0:
            if os.environ.get("CI"):
                sys.exit("strace does not work here (ptrace is forbidden?)")
            print("SKIPPED: faults, strace does not work here (ptrace is forbidden?)")
            sys.exit(0)
        for job in jobs:
            job.prepare()
            job.order()
            job.errors(args.every)
            job.kills(args.every)
            job.lying_writes()
        full_disk(jobs)
        short_writes(jobs)
        read = work / "readers/m.mpk"
        pack_again = pack + [str(read)]
        if run(pack_again).returncode != 0:
            sys.exit("packing failed")
        readers(pack_again, read)
        truncation(mpk)
        names(gguf)
        if (sha256(gguf), sha256(mpk)) != (source, packed):
            problem("an input was changed")
    finally:
        subprocess.run(["chmod", "-R", "u+w", str(work)])
        shutil.rmtree(work)
    counts.setdefault("files lost", 0)
    for what, n in sorted(counts.items()):
        print(f"{n:7} {what}")
    print(f"{len(problems)} problems in {time.time() - start:.0f} s")
    sys.exit(1 if problems else 0)


main()
