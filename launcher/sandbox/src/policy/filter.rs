//! The seccomp filter of a policy, in classic BPF.
//!
//! Written by hand because of what installing costs: the kernel runs a filter once for every system call number when it is
//! installed (to cache those that are always allowed), and a filter is installed for every command. A chain of comparisons,
//! as filter compilers emit it, makes that a hundred thousand instructions; a search tree over ranges, some thousands.
//!
//! Layout: the architecture; the number's upper bound; a binary tree whose leaves are answers or jumps to the argument
//! checks; the checks. Arguments are compared by their lower 32 bits, which is all that the kernel uses of those.

use super::syscalls::{
    CHECKED, Check, FAMILIES, FAMILY_NETLINK, IOCTL_TYPE_REFUSED, IOCTLS_REFUSED, LAST_KNOWN, PERSONALITIES, SYSCALLS,
    UNNAMED,
};
use dsec_sys::seccomp::{Filter, Instruction, SizeError};

/// A filter that cannot be expressed: a fault of the tables in this program, which its tests would show.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A conditional jump of classic BPF reaches 255 instructions.
    #[error("a jump of {distance} instructions in the seccomp filter is too far")]
    Jump {
        /// How far it would go.
        distance: usize,
    },
    /// Too long for the kernel.
    #[error(transparent)]
    Size(#[from] SizeError),
}

// include/uapi/linux/bpf_common.h
const LOAD: u16 = 0x20; // ld, absolute, a word
const JUMP: u16 = 0x05;
const EQUAL: u16 = 0x15;
const GREATER_OR_EQUAL: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

// struct seccomp_data
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;

const fn argument(index: u8) -> u32 {
    16 + 8 * index as u32
}

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;

const fn refuse(errno: i32) -> u32 {
    0x0005_0000 | errno.cast_unsigned()
}

/// `AUDIT_ARCH_*`: a call through another architecture's table would mean something else.
#[cfg(target_arch = "x86_64")]
const THIS_ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const THIS_ARCHITECTURE: u32 = 0xc000_00b7;

/// What a number leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaf {
    Answer(u32),
    Check(Check),
}

/// The filter, the same for every sandbox of a process.
///
/// # Errors
/// [`Error`] when the tables have outgrown classic BPF; a test holds that they have not.
pub(crate) fn build() -> Result<Filter, Error> {
    let ranges = ranges();
    let mut tree = Vec::new();
    let mut jumps = Vec::new();
    emit_tree(&ranges, &mut tree, &mut jumps)?;
    let mut instructions = vec![
        statement(LOAD, ARCHITECTURE),
        compare(EQUAL, THIS_ARCHITECTURE, 1, 0),
        statement(RETURN, KILL),
        statement(LOAD, NUMBER),
    ];
    let base = instructions.len();
    instructions.append(&mut tree);
    for (position, check) in jumps {
        let from = base + position;
        let distance = instructions.len() - from - 1;
        if let Some(jump) = instructions.get_mut(from) {
            jump.operand = u32::try_from(distance).map_err(|_| Error::Jump { distance })?;
        }
        instructions.extend(check_instructions(check)?);
    }
    Ok(Filter::new(instructions)?)
}

/// The number line cut where the answer changes: each entry holds from its number on. The last one, without end, covers
/// numbers not known yet and those of the x32 table.
fn ranges() -> Vec<(u32, Leaf)> {
    let mut ranges: Vec<(u32, Leaf)> = Vec::new();
    for number in 0..=LAST_KNOWN + 1 {
        let leaf = leaf(number);
        if ranges.last().is_none_or(|(_, last)| *last != leaf) {
            ranges.push((number, leaf));
        }
    }
    ranges
}

fn leaf(number: u32) -> Leaf {
    if number > LAST_KNOWN {
        return Leaf::Answer(refuse(libc::ENOSYS));
    }
    if let Some((_, check)) = CHECKED.iter().find(|(checked, _)| *checked == number) {
        return match check {
            Check::Missing => Leaf::Answer(refuse(libc::ENOSYS)),
            other => Leaf::Check(*other),
        };
    }
    let listed = SYSCALLS.iter().any(|group| group.calls.iter().any(|call| call.number == number));
    if listed || UNNAMED.contains(&number) { Leaf::Answer(ALLOW) } else { Leaf::Answer(refuse(libc::EPERM)) }
}

fn emit_tree(ranges: &[(u32, Leaf)], out: &mut Vec<Instruction>, jumps: &mut Vec<(usize, Check)>) -> Result<(), Error> {
    let (left, right) = ranges.split_at(ranges.len() / 2);
    match (left, right) {
        ([], [(_, Leaf::Answer(answer))]) => out.push(statement(RETURN, *answer)),
        ([], [(_, Leaf::Check(check))]) => {
            jumps.push((out.len(), *check));
            out.push(statement(JUMP, 0));
        }
        (_, [(pivot, _), ..]) => {
            let branch = out.len();
            out.push(compare(GREATER_OR_EQUAL, *pivot, 0, 0));
            emit_tree(left, out, jumps)?;
            let distance = out.len() - branch - 1;
            let far = u8::try_from(distance).map_err(|_| Error::Jump { distance })?;
            if let Some(instruction) = out.get_mut(branch) {
                instruction.if_true = far;
            }
            emit_tree(right, out, jumps)?;
        }
        (_, []) => {}
    }
    Ok(())
}

fn check_instructions(check: Check) -> Result<Vec<Instruction>, Error> {
    let permission = statement(RETURN, refuse(libc::EPERM));
    let allow = statement(RETURN, ALLOW);
    Ok(match check {
        Check::NoneOf { argument: index, mask } => {
            vec![statement(LOAD, argument(index)), compare(ANY_BIT, mask, 1, 0), allow, permission]
        }
        Check::Ioctl => {
            let mut list = vec![statement(LOAD, argument(1))];
            // To the refusal, which follows the type check (three instructions) and the permission to pass.
            list.extend(one_of(IOCTLS_REFUSED, 3)?);
            list.extend([statement(AND, 0xff00), compare(EQUAL, IOCTL_TYPE_REFUSED << 8, 1, 0), allow, permission]);
            list
        }
        Check::Socket => {
            let unsupported = statement(RETURN, refuse(libc::EAFNOSUPPORT));
            let mut list = vec![statement(LOAD, argument(0))];
            list.extend(one_of(FAMILIES, 5)?);
            list.extend([
                compare(EQUAL, FAMILY_NETLINK, 1, 0),
                unsupported,
                statement(LOAD, argument(2)),
                compare(EQUAL, 0, 1, 0),
                statement(RETURN, refuse(libc::EPROTONOSUPPORT)),
                allow,
            ]);
            list
        }
        Check::SocketPair => {
            let unsupported = statement(RETURN, refuse(libc::EAFNOSUPPORT));
            vec![statement(LOAD, argument(0)), compare(EQUAL, 1, 1, 0), unsupported, allow]
        }
        Check::Personality => {
            let mut list = vec![statement(LOAD, argument(0))];
            list.extend(one_of(PERSONALITIES, 1)?);
            list.extend([permission, allow]);
            list
        }
        Check::Missing => vec![statement(RETURN, refuse(libc::ENOSYS))],
    })
}

/// Comparisons with each value; a hit jumps over the rest of them and `beyond` instructions more.
fn one_of(values: &[u32], beyond: usize) -> Result<Vec<Instruction>, Error> {
    let target = |index: usize| {
        let distance = values.len() - index - 1 + beyond;
        u8::try_from(distance).map_err(|_| Error::Jump { distance })
    };
    values.iter().enumerate().map(|(index, value)| Ok(compare(EQUAL, *value, target(index)?, 0))).collect()
}

const fn statement(code: u16, operand: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, operand }
}

const fn compare(code: u16, operand: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, operand }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel does; the answer, and how many instructions it took.
    fn run(filter: &Filter, architecture: u32, number: u32, arguments: [u64; 6]) -> (u32, usize) {
        let mut data = Vec::new();
        data.extend_from_slice(&number.to_le_bytes());
        data.extend_from_slice(&architecture.to_le_bytes());
        data.extend_from_slice(&0u64.to_le_bytes());
        for argument in arguments {
            data.extend_from_slice(&argument.to_le_bytes());
        }
        let (mut at, mut accumulator, mut steps) = (0usize, 0u32, 0usize);
        loop {
            let Instruction { code, if_true, if_false, operand } = filter.instructions()[at];
            steps += 1;
            at += 1;
            let branch = |holds: bool| usize::from(if holds { if_true } else { if_false });
            match code {
                LOAD => {
                    let offset = operand as usize;
                    accumulator = u32::from_le_bytes(data[offset..offset + 4].try_into().unwrap());
                }
                JUMP => at += operand as usize,
                EQUAL => at += branch(accumulator == operand),
                GREATER_OR_EQUAL => at += branch(accumulator >= operand),
                ANY_BIT => at += branch(accumulator & operand != 0),
                AND => accumulator &= operand,
                RETURN => return (operand, steps),
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    fn answer(number: i64, arguments: [u64; 6]) -> u32 {
        run(&build().unwrap(), THIS_ARCHITECTURE, u32::try_from(number).unwrap(), arguments).0
    }

    #[test]
    fn agrees_with_the_tables_for_every_number() {
        let filter = build().unwrap();
        let mut longest = 0;
        for number in (0..1024).chain([0x4000_0000, 0x4000_0200, u32::MAX]) {
            let (answer, steps) = run(&filter, THIS_ARCHITECTURE, number, [0; 6]);
            longest = longest.max(steps);
            match leaf(number) {
                Leaf::Answer(expected) => assert_eq!(answer, expected, "{number}"),
                Leaf::Check(_) => {}
            }
        }
        assert!(longest <= 24, "{longest} instructions for one call");
        assert!(filter.instructions().len() < 300, "{}", filter.instructions().len());
    }

    #[test]
    fn another_architecture_is_killed() {
        assert_eq!(run(&build().unwrap(), 0x4000_0003, 1, [0; 6]).0, KILL);
    }

    #[test]
    fn threads_and_forks_pass_and_namespaces_do_not() {
        let thread = 0x3d_0f00;
        assert_eq!(answer(libc::SYS_clone, [thread, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_clone, [17, 0, 0, 0, 0, 0]), ALLOW);
        for flag in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWPID] {
            assert_eq!(answer(libc::SYS_clone, [flag as u64 | 17, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
            assert_eq!(answer(libc::SYS_unshare, [flag as u64, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
        }
        assert_eq!(answer(libc::SYS_clone, [libc::CLONE_PARENT as u64 | 17, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
        assert_eq!(answer(libc::SYS_unshare, [0x80, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
        assert_eq!(answer(libc::SYS_unshare, [libc::CLONE_FS as u64, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(answer(libc::SYS_clone3, [0; 6]), refuse(libc::ENOSYS));
    }

    #[test]
    fn ioctls_by_type_and_number() {
        for request in [0x5401u64, 0x5413, 0x541b, 0x8004_6601, 0x4004_9409] {
            assert_eq!(answer(libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), ALLOW, "{request:#x}");
        }
        // XFS_IOC_SWAPEXT, FIFREEZE, FS_IOC_FSSETXATTR, TIOCSTI, TIOCLINUX, TIOCSETD
        for request in [0xc0c0_586du64, 0xc004_5877, 0x401c_5820, 0x5412, 0x541c, 0x5423] {
            assert_eq!(answer(libc::SYS_ioctl, [0, request, 0, 0, 0, 0]), refuse(libc::EPERM), "{request:#x}");
            // The kernel ignores the upper half of the request, and so must the filter.
            let upper = request | 0xdead_0000_0000;
            assert_eq!(answer(libc::SYS_ioctl, [0, upper, 0, 0, 0, 0]), refuse(libc::EPERM), "{upper:#x}");
        }
    }

    #[test]
    fn socket_families() {
        for family in 0..64u64 {
            let expected = match family {
                1 | 2 | 10 | 16 => ALLOW,
                _ => refuse(libc::EAFNOSUPPORT),
            };
            assert_eq!(answer(libc::SYS_socket, [family, 1, 0, 0, 0, 0]), expected, "{family}");
            let pair = if family == 1 { ALLOW } else { refuse(libc::EAFNOSUPPORT) };
            assert_eq!(answer(libc::SYS_socketpair, [family, 1, 0, 0, 0, 0]), pair, "{family}");
        }
        for protocol in 1..32 {
            let netlink = answer(libc::SYS_socket, [16, 3, protocol, 0, 0, 0]);
            assert_eq!(netlink, refuse(libc::EPROTONOSUPPORT), "{protocol}");
        }
    }

    #[test]
    fn personalities() {
        for value in [0, 8, 0x4_0000, 0xffff_ffff] {
            assert_eq!(answer(libc::SYS_personality, [value, 0, 0, 0, 0, 0]), ALLOW);
        }
        assert_eq!(answer(libc::SYS_personality, [0x40_0000, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
    }
}
