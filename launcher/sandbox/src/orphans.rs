//! Commands whose owner has died.
//!
//! A command's leader is a child of the process that started it. When that process dies, the kernel hands the leader to
//! an ancestor of *that* process, outside the sandbox; whatever else runs inside has its parent inside (pid 1 takes the
//! orphans). So a process of a command whose parent is not of the sandbox is a leader that ran when its owner died.

use crate::runtime::Error;
use crate::sandbox::Sandbox;
use std::collections::BTreeSet;

impl Sandbox {
    /// Kills every command whose leader was running when the process that started it died, with all that it started; how
    /// many there were. Commands whose leader had ended before, and what they left running, are untouched.
    ///
    /// To be called after [`Runtime::adopt`](crate::Runtime::adopt), before any other command is started.
    ///
    /// # Errors
    /// [`Error`].
    pub fn end_orphans(&self) -> Result<usize, Error> {
        let commands = self.groups.existing_commands()?;
        let mut inside = BTreeSet::from([self.state.pid]);
        for command in &commands {
            inside.extend(command.pids()?);
        }
        let mut ended = 0;
        for command in commands {
            let leaderless = |pid: &u32| parent(*pid).is_some_and(|parent| !inside.contains(&parent));
            if command.pids()?.iter().any(leaderless) {
                command.kill()?;
                ended += 1;
            }
            self.shared.children.linger(&self.state.id, command);
        }
        Ok(ended)
    }
}

/// A process's parent; `None` when it has ended, or its parent is of no namespace that is seen here.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may hold anything; the parent is the second field behind it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}
