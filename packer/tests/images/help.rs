//! What `--help` says, of the program and of each subcommand: a change of the command line is seen in review.
//!
//! `INSTA_UPDATE=always` writes the snapshots anew.

use std::process::Command;

fn help_of(subcommand: Option<&str>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dsec-pack"));
    let done = command.args(subcommand).arg("--help").env_remove("COLUMNS").output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{subcommand:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// The subcommands that the help of the program lists.
fn subcommands(help: &str) -> Vec<&str> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // What begins further to the right is the rest of a description.
    let words = lines.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    words.filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_command_line_is_as_reviewed() {
    let help = help_of(None);
    insta::assert_snapshot!("dsec-pack", help);
    let subcommands = subcommands(&help);
    assert!(subcommands.contains(&"build") && subcommands.contains(&"man"), "{subcommands:?}");
    for subcommand in subcommands {
        insta::assert_snapshot!(subcommand, help_of(Some(subcommand)));
    }
}
