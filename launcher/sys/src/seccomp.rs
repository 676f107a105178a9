//! Seccomp filters as bytes: classic BPF instructions, laid out as the kernel reads them.
//!
//! Building one is safe and done once; installing happens in the process it is for, by [`crate::starter`].

/// One instruction of classic BPF (`struct sock_filter`).
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip when the comparison holds.
    pub if_true: u8,
    /// Instructions to skip when it does not.
    pub if_false: u8,
    /// The operand.
    pub operand: u32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// A program that the kernel can install: not empty, and no longer than it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    instructions: Box<[Instruction]>,
}

/// A program that no kernel would take.
#[derive(Debug, thiserror::Error)]
#[error("a seccomp filter of {instructions} instructions, of 1 to {max} that the kernel takes", max = Filter::INSTRUCTIONS_MAX)]
pub struct SizeError {
    /// How many it has.
    pub instructions: usize,
}

impl Filter {
    /// The kernel's `BPF_MAXINSNS`.
    pub const INSTRUCTIONS_MAX: usize = 4096;

    /// A filter of these instructions. Whether they are valid is the kernel's to say, when it is installed.
    ///
    /// # Errors
    /// [`SizeError`] when there are none or too many.
    pub fn new(instructions: Vec<Instruction>) -> Result<Self, SizeError> {
        if instructions.is_empty() || instructions.len() > Self::INSTRUCTIONS_MAX {
            return Err(SizeError { instructions: instructions.len() });
        }
        Ok(Self { instructions: instructions.into() })
    }

    /// The instructions.
    #[must_use]
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
}
