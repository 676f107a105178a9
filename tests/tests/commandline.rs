//! What holds for the command lines of all four programs alike: `docs/command-line.md`, as tests.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use dsec_tests::program::binary;
use serde_json::Value;

const PROGRAMS: [&str; 4] = ["dsec-pack", "dsec-mountd", "dsec-registry", "dsec"];
/// Where each program reads its environment, and nowhere else.
const SOURCES: [(&str, &str); 4] = [
    ("dsec-pack", "packer/src/cli"),
    ("dsec-mountd", "fs/mountd/src/cli"),
    ("dsec-registry", "registry/server/src/cli"),
    ("dsec", "launcher/cli/src"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary(program).unwrap());
    command.args(arguments).env_remove("COLUMNS").stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// A user without rights, in a directory of its own.
struct User {
    directory: tempfile::TempDir,
}

impl User {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "privileged tests need root");
        let directory = tempfile::tempdir().unwrap();
        let mode = std::fs::Permissions::from_mode;
        fs_err::set_permissions(directory.path(), mode(0o755)).unwrap();
        for name in ["home", "data"] {
            let path = directory.path().join(name);
            fs_err::create_dir(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
        }
        fs_err::create_dir(directory.path().join("roots")).unwrap();
        fs_err::set_permissions(directory.path().join("roots"), mode(0o700)).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(binary(program).unwrap());
        command.args(arguments).env("HOME", self.path("home")).env("XDG_DATA_HOME", self.path("data"));
        command.env_remove("DSEC_STORE").stdin(Stdio::null()).current_dir(self.path("home"));
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program, arguments).output().unwrap()
    }
}

#[test]
fn every_help_has_examples_variables_and_exit_codes_and_fits_its_terminal() {
    for program in PROGRAMS {
        let help = said(&run(program, &["--help"]));
        for part in ["\nExamples:\n", "\nEnvironment:\n", "\nExit codes:\n"] {
            assert!(help.contains(part), "{program} --help lacks {part:?}");
        }
        let narrow = Command::new(binary(program).unwrap()).arg("--help").env("COLUMNS", "60").output().unwrap();
        let narrow = String::from_utf8(narrow.stdout).unwrap();
        for line in narrow.lines().take_while(|line| *line != "Examples:") {
            assert!(line.chars().count() <= 60, "{program} --help: a line is wider than the terminal: {line:?}");
        }
    }
}

#[test]
fn every_option_with_a_value_has_its_default_in_the_reference() {
    // The references are what `--help` says; a test of each program holds that.
    for program in PROGRAMS {
        let reference = fs_err::read_to_string(root().join(format!("docs/reference/{program}.md"))).unwrap();
        let help = said(&run(program, &["--help"]));
        let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
        let commands =
            commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).filter(|word| !word.is_empty());
        let mut options = 0;
        for command in commands {
            assert!(reference.contains(&format!("\n## {program} {command}\n")), "{program} {command}");
            let help = said(&run(program, &[command, "--help"]));
            let words = help.lines().take_while(|line| *line != "Examples:").flat_map(str::split_whitespace);
            for word in words.filter(|word| word.starts_with("--") && word.len() > 2) {
                let option = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
                assert!(
                    reference.contains(option) || ["--help", "--version"].contains(&option),
                    "{program} {command} {option} is not in docs/reference"
                );
                options += 1;
            }
        }
        assert!(options > 5, "{program}: options were found");
    }
}

#[test]
fn completion_and_man_are_the_same_in_all() {
    let directory = tempfile::tempdir().unwrap();
    for program in PROGRAMS {
        for shell in ["bash", "zsh", "fish"] {
            let script = run(program, &["completion", shell]);
            assert!(script.status.success() && said(&script).contains(program), "{program} {shell}");
        }
        let page = said(&run(program, &["man"]));
        assert!(page.contains(".TH") && page.contains("Exit codes:"), "{program}: {page}");
        let page = said(&run(program, &["man", "completion"]));
        assert!(page.contains(&format!("{program}\\-completion").replace("dsec-", "dsec\\-")), "{program}: {page}");
        let pages = directory.path().join(program);
        let written = run(program, &["man", "--json", "--directory", pages.to_str().unwrap()]);
        let written: Value = serde_json::from_slice(&written.stdout).unwrap();
        assert_eq!(written["pages"].as_array().unwrap().len(), fs_err::read_dir(&pages).unwrap().count());
        assert!(pages.join(format!("{program}.1")).exists() && pages.join(format!("{program}-man.1")).exists());
        let script: Value = serde_json::from_slice(&run(program, &["--json", "completion", "fish"]).stdout).unwrap();
        assert!(script["script"].as_str().unwrap().contains(program));
    }
}

#[test]
fn a_wrong_command_line_is_told_in_one_way() {
    for program in PROGRAMS {
        for arguments in [&["--json", "nonsense"][..], &["--json", "man", "nonsense"], &["man", "--wrong", "--json"]] {
            let done = run(program, arguments);
            assert_eq!(done.status.code(), Some(2), "{program} {arguments:?}: {done:?}");
            let error: Value = serde_json::from_slice(&done.stdout).unwrap();
            let members: Vec<_> = error["error"].as_object().unwrap().keys().map(String::as_str).collect();
            let members: BTreeSet<_> = members.into_iter().collect();
            assert_eq!(members, ["causes", "exit_code", "hint", "kind", "message"].into(), "{program}");
            assert_eq!((&error["error"]["kind"], &error["error"]["exit_code"]), (&"usage".into(), &2.into()));
        }
        let done = run(program, &["nonsense"]);
        assert!(done.stdout.is_empty() && said(&done).starts_with("error: "), "{program}: {done:?}");
    }
}

/// The names in a text that begin as our variables do.
fn variables(text: &str) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_ascii_uppercase() || c == '_';
    let starts = text.match_indices("DSEC_").map(|(at, _)| &text[at..]);
    starts.map(|rest| rest.split(|c| !is_word(c)).next().unwrap_or_default()).collect()
}

fn sources(below: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs_err::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn variables_are_read_by_programs_only_and_all_are_described() {
    let conventions = fs_err::read_to_string(root().join("docs/command-line.md")).unwrap();
    for (program, directory) in SOURCES {
        let directory = root().join(directory);
        let mut files = vec![];
        sources(&directory, &mut files);
        files.push(directory.with_extension("rs"));
        let help = said(&run(program, &["--help"]));
        for file in files.iter().filter(|file| file.exists()) {
            let text = fs_err::read_to_string(file).unwrap();
            for name in variables(&text) {
                assert!(conventions.contains(&format!("`{name}`")), "docs/command-line.md lacks {name} of {program}");
                assert!(help.contains(name), "{program} --help lacks {name}");
            }
        }
        let (_, environment) = help.split_once("\nEnvironment:\n").unwrap();
        for name in variables(environment) {
            let row = conventions.lines().find(|line| line.starts_with(&format!("| `{name}`"))).unwrap_or_default();
            assert!(
                row.contains(&format!("`{program}`")) || row.contains("| all |") || row.contains("`dsec edge`"),
                "{name}: {row}"
            );
        }
    }
    let mut libraries = vec![];
    for directory in ["commandline", "registry", "packer", "fs", "launcher"] {
        sources(&root().join(directory), &mut libraries);
    }
    let programs = SOURCES.map(|(_, directory)| root().join(directory));
    let is_library = |path: &&PathBuf| {
        let tests =
            ["tests", "examples", "benches", "build.rs"].iter().any(|part| path.iter().any(|step| step == *part));
        !tests && !programs.iter().any(|program| path.starts_with(program) || **path == program.with_extension("rs"))
    };
    let reads: Vec<_> = libraries
        .iter()
        .filter(is_library)
        .filter(|path| {
            let text = fs_err::read_to_string(path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            code.contains("env::var") || code.contains("env::vars")
        })
        .collect();
    assert!(libraries.len() > 100 && reads.is_empty(), "libraries that read the environment: {reads:?}");
}

#[test]
fn logs_have_no_colours_in_pipes() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store");
    let mut registry = Command::new(binary("dsec-registry").unwrap());
    registry.args(["serve", "--create", "--listen", "localhost:0", "--store"]).arg(&store);
    let mut registry = registry.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(registry.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on 127.0.0.1:"), "{line}");
    let id = rustix::process::Pid::from_raw(i32::try_from(registry.id()).unwrap()).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let log = String::from_utf8(registry.wait_with_output().unwrap().stderr).unwrap();
    assert!(log.contains("INFO") && !log.contains('\u{1b}'), "{log:?}");

    // It warns of a store that is not there yet, and then has no place for its cache.
    let nowhere = ["serve", "--store", "/nonexistent", "--cache", "/dev/null/cache", "--run", "/dev/null/run"];
    let log = String::from_utf8(run("dsec-mountd", &nowhere).stderr).unwrap();
    assert!(log.contains("WARN") && !log.contains('\u{1b}'), "{log:?}");
}

#[test]
fn privileged_a_user_without_root_has_a_store_and_serves_it() {
    let user = User::new();
    fs_err::write(user.directory.path().join("home/file"), "mine").unwrap();
    let built = user.run("dsec-pack", &["build", ".", "--ref", "mine:1"]);
    assert!(built.status.success(), "{}", said(&built));
    assert!(user.directory.path().join("data/dsec/store/format").exists());
    let mut registry = user.command("dsec-registry", &["--json", "serve", "--listen", "localhost:0"]);
    let mut registry = registry.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(registry.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let url = format!("http://{}", ready["listening"].as_str().unwrap());
    let listed = user.run("dsec-pack", &["ls", "--at", &url]);
    registry.kill().unwrap();
    registry.wait().unwrap();
    assert!(said(&listed).starts_with("mine:1 "), "{}", said(&listed));
}

#[test]
fn privileged_what_takes_root_says_so() {
    let user = User::new();
    let socket = user.path("root.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    fs_err::set_permissions(&socket, std::fs::Permissions::from_mode(0o600)).unwrap();
    let (roots, home) = (user.path("roots/x"), user.path("home"));
    for (program, arguments) in [
        ("dsec-pack", &["mount", "any:1", &home, "--mountd", &socket][..]),
        ("dsec-mountd", &["status", "--socket", &socket]),
        ("dsec-mountd", &["serve", "--cache", &roots, "--run", &roots, "--socket", &socket]),
        ("dsec", &["--edge", &socket, "ps"]),
        ("dsec", &["edge", "--root", &roots, "--socket", &socket]),
    ] {
        let done = user.run(program, arguments);
        let text = said(&done);
        assert_eq!(done.status.code(), Some(7), "{program} {arguments:?}: {text}");
        let hint = text.lines().find(|line| line.starts_with("hint: ")).unwrap_or_default();
        assert!(hint.contains("as root"), "{program} {arguments:?}: {text}");
    }
}
