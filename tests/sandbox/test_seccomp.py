"""The filter, run by a small interpreter of its instructions for both architectures."""

from __future__ import annotations

import struct

import pytest

from dare_sandbox.inside.system import ALLOW, AUDIT_ARCH, KILL, assemble, numbers

ARCHES = sorted(AUDIT_ARCH)
REFUSED = {"nothing done": 0x50000, "EPERM": 0x50001, "ENOMEM": 0x5000C, "ENOSYS": 0x50026}


def decide(program: bytes, arch: int, number: int, *args: int) -> int:
    """What the kernel would do with a system call."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *(*args, *[0] * (6 - len(args))))
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        operation, yes, no, value = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, value)[0]
        elif operation == 0x15:
            at += yes if accumulator == value else no
        elif operation == 0x35:
            at += yes if accumulator >= value else no
        elif operation == 0x05:
            at += value
        elif operation == 0x45:
            at += yes if accumulator & value else no
        elif operation == 0x54:
            accumulator &= value
        else:
            assert operation == 0x06
            return value


@pytest.mark.parametrize("arch", ARCHES)
def test_filters_are_short_enough(arch: str) -> None:
    assert len(assemble(arch, own_pid=5, ownership=False)) // 8 < 4096


@pytest.mark.parametrize("arch", ARCHES)
def test_calls(arch: str) -> None:
    table, audit = numbers(arch), AUDIT_ARCH[arch]
    plain = assemble(arch)
    strict = assemble(arch, own_pid=77, ownership=False, truncate=False)
    shared = assemble(arch, shared_memory=True)
    for program, name, args, answer in [
        (plain, "read", (0,), "allow"),
        (plain, "futex", (), "allow"),
        (plain, "clone", (0x11,), "allow"),
        (plain, "clone", (0x10000011,), "EPERM"),  # a new user namespace
        (plain, "clone", (0x40000011,), "EPERM"),  # a new network namespace
        (plain, "socketpair", (1, 1), "allow"),
        (plain, "socketpair", (1, 1 | 0x80000), "allow"),
        (plain, "socketpair", (1, 2), "EPERM"),
        (plain, "socketpair", (2, 1), "EPERM"),
        (plain, "ioctl", (0, 0x5401), "allow"),
        (plain, "ioctl", (0, 0x5412), "EPERM"),  # pushing characters into a terminal
        (plain, "fcntl", (0, 3), "allow"),
        (plain, "fcntl", (0, 8), "EPERM"),
        (plain, "prlimit64", (0, 7), "allow"),
        (plain, "prlimit64", (4321, 7), "EPERM"),
        (plain, "mmap", (0, 4096, 3, 0x22), "allow"),
        (plain, "mmap", (0, 4096, 3, 0x21), "ENOMEM"),
        (plain, "mmap", (0, 4096, 3, 0x01), "allow"),
        (shared, "mmap", (0, 1 << 21, 3, 0x40022), "EPERM"),  # huge pages
        (shared, "mmap", (0, 4096, 3, 0x21), "allow"),
        (plain, "kill", (1, 9), "allow"),
        (strict, "kill", (77, 9), "allow"),
        (strict, "kill", (1, 9), "EPERM"),
        (strict, "kill", (2**64 - 1, 9), "EPERM"),
        (strict, "tgkill", (78, 78, 9), "EPERM"),
        (plain, "fchmodat", (), "allow"),
        (strict, "fchmodat", (), "nothing done"),
        (strict, "fchownat", (), "EPERM"),
        (plain, "truncate", (), "allow"),
        (strict, "truncate", (), "EPERM"),
    ]:
        expected = ALLOW if answer == "allow" else REFUSED[answer]
        assert decide(program, audit, table[name], *args) == expected, (name, args)


@pytest.mark.parametrize("arch", ARCHES)
def test_what_is_not_named_does_not_exist(arch: str) -> None:
    named = set(numbers(arch).values())
    program = assemble(arch)
    for number in set(range(600)) - named:
        assert decide(program, AUDIT_ARCH[arch], number) == REFUSED["ENOSYS"]


def test_other_architectures_are_killed() -> None:
    assert decide(assemble("x86_64"), 0x40000003, 3) == KILL  # 32-bit calls
    assert decide(assemble("x86_64"), AUDIT_ARCH["x86_64"], 0x40000000 | 39) == KILL  # x32
    assert decide(assemble("aarch64"), AUDIT_ARCH["x86_64"], 0) == KILL


@pytest.mark.parametrize(
    ("arch", "forbidden"),
    [
        ("x86_64", {"socket": 41, "ptrace": 101, "memfd_create": 319, "io_uring_setup": 425}),
        ("aarch64", {"socket": 198, "ptrace": 117, "memfd_create": 279, "clone3": 435}),
    ],
)
def test_dangerous_calls(arch: str, forbidden: dict[str, int]) -> None:
    for number in forbidden.values():
        assert decide(assemble(arch), AUDIT_ARCH[arch], number) == REFUSED["ENOSYS"]
