"""The system calls a program may make, with their numbers on x86_64 and on aarch64.

Whatever is not named here does not exist for the program (`ENOSYS`): sockets other than those it
already holds, keyrings, io_uring, bpf, perf, memfd, System V memory, tracing, mounts, namespaces,
kernel modules and whatever the kernel will grow next.
"""

from __future__ import annotations

import os

_TABLE = """
read 0 63, write 1 64, open 2 -, close 3 57, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79,
statx 332 291, poll 7 -, ppoll 271 73, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215,
brk 12 214, mremap 25 216, madvise 28 233, msync 26 227, mincore 27 232, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigsuspend 130 133,
rt_sigtimedwait 128 137, sigaltstack 131 132, ioctl 16 29, pread64 17 67, pwrite64 18 68,
readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70, preadv2 327 286, pwritev2 328 287,
access 21 -, faccessat 269 48, faccessat2 439 439, pipe 22 -, pipe2 293 59, select 23 -,
pselect6 270 72, sched_yield 24 124, dup 32 23, dup2 33 -, dup3 292 24, pause 34 -,
nanosleep 35 101, clock_nanosleep 230 115, getitimer 36 102, setitimer 38 103, alarm 37 -,
getpid 39 172, gettid 186 178, getppid 110 173, sendto 44 206, recvfrom 45 207, sendmsg 46 211,
recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243, shutdown 48 210, getsockname 51 204,
getpeername 52 205, socketpair 53 199, getsockopt 55 209, clone 56 220, fork 57 -, vfork 58 -,
execve 59 221, execveat 322 281, exit 60 93, exit_group 231 94, wait4 61 260, waitid 247 95,
kill 62 129, tgkill 234 131, tkill 200 130, uname 63 160, fcntl 72 25, flock 73 32, fsync 74 82,
fdatasync 75 83, truncate 76 45, ftruncate 77 46, fallocate 285 47, getdents 78 -,
getdents64 217 61, getcwd 79 17, chdir 80 49, fchdir 81 50, rename 82 -, renameat 264 38,
renameat2 316 276, mkdir 83 -, mkdirat 258 34, rmdir 84 -, creat 85 -, link 86 -, linkat 265 37,
unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36, readlink 89 -, readlinkat 267 78,
chmod 90 -, fchmod 91 52, fchmodat 268 53, chown 92 -, lchown 94 -, fchown 93 55,
fchownat 260 54, umask 95 166, utime 132 -, utimes 235 -, utimensat 280 88, futimesat 261 -,
gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, time 201 -, times 100 153,
getrlimit 97 163, setrlimit 160 164, prlimit64 302 261, getrusage 98 165, sysinfo 99 179,
getuid 102 174, getgid 104 176, geteuid 107 175, getegid 108 177, getresuid 118 148,
getresgid 120 150, getgroups 115 158, getpgrp 111 -, getpgid 121 155, setpgid 109 154,
setsid 112 157, getsid 124 156, statfs 137 43, fstatfs 138 44, getpriority 140 141,
setpriority 141 140, sched_getparam 143 121, sched_getscheduler 145 120,
sched_get_priority_max 146 125, sched_get_priority_min 147 126, sched_rr_get_interval 148 127,
sched_getaffinity 204 123, sched_setaffinity 203 122, mlock 149 228, mlock2 325 284,
munlock 150 229, mlockall 151 230, munlockall 152 231, prctl 157 167, arch_prctl 158 -,
sync_file_range 277 84, futex 202 98, futex_waitv 449 449, set_tid_address 218 96,
set_robust_list 273 99, get_robust_list 274 100, rseq 334 293, membarrier 324 283,
restart_syscall 219 128, getcpu 309 168, getrandom 318 278, epoll_create 213 -,
epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22,
epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, signalfd 282 -, signalfd4 289 74,
timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, timer_create 222 107,
timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111,
sendfile 40 71, splice 275 76, tee 276 77, vmsplice 278 75, copy_file_range 326 285,
openat 257 56, openat2 437 437, close_range 436 436, pidfd_open 434 434, fadvise64 221 223,
readahead 187 213, capget 125 90, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10,
listxattr 194 11, llistxattr 195 12, flistxattr 196 13
"""

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def machine() -> str:
    """The architecture whose numbers hold here; a 32-bit interpreter has none."""
    name = os.uname().machine
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def numbers(arch: str) -> dict[str, int]:
    """Name and number of every allowed call that `arch` has."""
    column = {"x86_64": 1, "aarch64": 2}[arch]
    rows = [entry.split() for entry in _TABLE.replace("\n", " ").split(",")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}
