//! The shape of the tree, held by tests: which crate may use which, where `unsafe` lives, how files open and how long
//! they are.
//!
//! What is read is the manifests (by `cargo metadata`) and the files that git knows; nothing is built or run. The rules
//! themselves are described in `ARCHITECTURE.md`; a rule that changes is changed in both places.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use cargo_metadata::{Metadata, MetadataCommand, Package};

/// Every crate of ours and what it may use of ours. `dsec-tests` may use every library.
const DIRECTION: &[(&str, &[&str])] = &[
    ("dsec-commandline", &[]),
    ("dsec-format", &[]),
    ("dsec-sys", &[]),
    ("dsec-store", &["dsec-format"]),
    ("dsec-erofs", &["dsec-format"]),
    ("dsec-mountd-client", &["dsec-format"]),
    ("dsec-registry", &["dsec-commandline", "dsec-format", "dsec-store"]),
    ("dsec-pack", &["dsec-commandline", "dsec-erofs", "dsec-format", "dsec-mountd-client", "dsec-store"]),
    ("dsec-mountd", &["dsec-commandline", "dsec-erofs", "dsec-format", "dsec-mountd-client", "dsec-store", "dsec-sys"]),
    ("dsec-sandbox", &["dsec-format", "dsec-sys"]),
    ("dsec-fleet", &["dsec-format", "dsec-mountd-client", "dsec-sandbox", "dsec-store"]),
    ("dsec", &["dsec-commandline", "dsec-fleet", "dsec-format"]),
];
/// The one crate that may say `unsafe`.
const UNSAFE_CRATE: &str = "dsec-sys";
/// Crates whose code runs in daemons: no panic by unwrap or index outside tests.
const DAEMON_CRATES: &[&str] = &["dsec-mountd", "dsec-mountd-client", "dsec-registry", "dsec-fleet"];
/// No source file is longer.
const MAX_FILE_LINES: usize = 800;
/// A `main.rs` parses and calls the library.
const MAX_MAIN_LINES: usize = 60;

fn metadata() -> Metadata {
    let manifest = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    MetadataCommand::new().manifest_path(manifest).no_deps().exec().expect("cargo metadata answers")
}

fn names_of_ours(metadata: &Metadata) -> BTreeSet<String> {
    metadata.packages.iter().map(|package| package.name.to_string()).collect()
}

fn ours_used_by(package: &Package, ours: &BTreeSet<String>) -> BTreeSet<String> {
    package.dependencies.iter().map(|dependency| dependency.name.clone()).filter(|name| ours.contains(name)).collect()
}

fn directory(package: &Package) -> &Utf8Path {
    package.manifest_path.parent().expect("a manifest lies in a directory")
}

/// Files that git knows below the workspace root, or that it would take: relative paths.
fn files(root: &Utf8Path) -> Vec<Utf8PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("file names are UTF-8");
    let mut files: Vec<_> = text.split_terminator('\0').map(Utf8PathBuf::from).collect();
    files.retain(|path| root.join(path).is_file());
    files.sort();
    files.dedup();
    files
}

fn rust_files(root: &Utf8Path) -> Vec<Utf8PathBuf> {
    files(root).into_iter().filter(|path| path.extension() == Some("rs")).collect()
}

fn read(root: &Utf8Path, path: &Utf8Path) -> String {
    fs_err::read_to_string(root.join(path)).expect("a source file is UTF-8 text")
}

fn assert_none(wrong: &[String], rule: &str) {
    assert!(wrong.is_empty(), "{rule}:\n  {}", wrong.join("\n  "));
}

#[test]
fn dependencies_point_in_the_direction_of_the_tree() {
    let metadata = metadata();
    let ours = names_of_ours(&metadata);
    let allowed: BTreeMap<_, _> = DIRECTION.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in metadata.packages.iter().filter(|package| package.name.as_str() != "dsec-tests") {
        let Some(allowed) = allowed.get(package.name.as_str()) else {
            wrong.push(format!("{} is not in the table of this test", package.name));
            continue;
        };
        let used = ours_used_by(package, &ours);
        wrong.extend(
            used.iter()
                .filter(|name| !allowed.contains(&name.as_str()))
                .map(|name| format!("{} uses {name}", package.name)),
        );
    }
    assert_none(&wrong, "dependencies against the direction of the tree");
    assert_eq!(DIRECTION.len() + 1, ours.len(), "the table of this test names crates that do not exist");
}

#[test]
fn no_crate_links_a_program() {
    let metadata = metadata();
    let ours = names_of_ours(&metadata);
    let is_program = |package: &&Package| package.targets.iter().any(|target| target.is_bin());
    let programs: BTreeSet<_> = metadata.packages.iter().filter(is_program).map(|p| p.name.to_string()).collect();
    assert!(programs.contains("dsec") && programs.contains("dsec-mountd"), "programs were found: {programs:?}");
    let linked: Vec<_> = metadata
        .packages
        .iter()
        .flat_map(|package| ours_used_by(package, &ours).into_iter().map(move |used| (package.name.clone(), used)))
        .filter(|(_, used)| programs.contains(used))
        .map(|(package, used)| format!("{package} links {used}"))
        .collect();
    assert_none(&linked, "programs talk over sockets, not by linking each other");
}

#[test]
fn dependencies_are_declared_once() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let manifest: toml::Table = fs_err::read_to_string(&package.manifest_path).unwrap().parse().unwrap();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(toml::Value::Table(dependencies)) = manifest.get(section) else { continue };
            for (name, value) in dependencies {
                if value.get("workspace").and_then(toml::Value::as_bool) != Some(true) {
                    wrong.push(format!("{}: {name} in [{section}]", package.name));
                }
            }
        }
    }
    assert_none(&wrong, "dependencies come from [workspace.dependencies]");
}

#[test]
fn every_crate_has_the_lints() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let manifest: toml::Table = fs_err::read_to_string(&package.manifest_path).unwrap().parse().unwrap();
        let lints = manifest.get("lints");
        let inherits =
            lints.and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool).unwrap_or_default();
        let documents_unsafe =
            lints.and_then(|lints| lints.get("clippy")).and_then(|c| c.get("undocumented_unsafe_blocks")).is_some();
        let is_unsafe_crate = package.name.as_str() == UNSAFE_CRATE;
        if !(inherits && !is_unsafe_crate || is_unsafe_crate && documents_unsafe) {
            wrong.push(package.name.to_string());
        }
    }
    assert_none(&wrong, "crates without the workspace's lints");
}

#[test]
fn daemons_do_not_panic_by_unwrap_or_index() {
    let metadata = metadata();
    let mut wrong = Vec::new();
    for package in metadata.packages.iter().filter(|package| DAEMON_CRATES.contains(&package.name.as_str())) {
        let text = read(directory(package), Utf8Path::new("src/lib.rs"));
        if !(text.contains("clippy::unwrap_used") && text.contains("clippy::indexing_slicing")) {
            wrong.push(package.name.to_string());
        }
    }
    assert_none(&wrong, "daemon crates that do not deny unwrap_used and indexing_slicing");
}

/// Whether a line of code has the keyword; comments and the lint's own name do not count.
fn says_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    code.match_indices("unsafe").any(|(start, word)| {
        let bytes = code.as_bytes();
        let before = start.checked_sub(1).and_then(|at| bytes.get(at));
        let after = bytes.get(start + word.len());
        !before.is_some_and(|byte| is_word(*byte)) && !after.is_some_and(|byte| is_word(*byte))
    })
}

#[test]
fn unsafe_code_lives_in_one_crate() {
    let metadata = metadata();
    let root = &metadata.workspace_root;
    let home = metadata.packages.iter().find(|package| package.name.as_str() == UNSAFE_CRATE).expect("it exists");
    let home = directory(home).strip_prefix(root).expect("crates lie below the root").to_owned();
    let this_file = Utf8Path::new("tests/tests/architecture.rs");
    let mut wrong = Vec::new();
    for path in rust_files(root).iter().filter(|path| !path.starts_with(&home) && *path != this_file) {
        let text = read(root, path);
        let lines = (1..).zip(text.lines()).filter(|(_, line)| says_unsafe(line));
        wrong.extend(lines.map(|(number, line)| format!("{path}:{number}: {}", line.trim())));
    }
    assert_none(&wrong, "unsafe outside of dsec-sys");
}

#[test]
fn says_unsafe_tells_the_keyword_from_its_look_alikes() {
    assert!(says_unsafe("let x = unsafe { f() };"));
    assert!(!says_unsafe("#![forbid(unsafe_code)]"));
    assert!(!says_unsafe("// unsafe"));
}

#[test]
fn source_files_open_with_a_description_and_stay_short() {
    let metadata = metadata();
    let root = &metadata.workspace_root;
    let paths = rust_files(root);
    assert!(paths.len() > 20, "the sources were found: {paths:?}");
    let mut wrong = Vec::new();
    for path in paths {
        let text = read(root, &path);
        let lines = text.lines().count();
        if !text.starts_with("//! ") {
            wrong.push(format!("{path} does not open with `//! `"));
        }
        if lines > MAX_FILE_LINES {
            wrong.push(format!("{path} has {lines} lines, allowed are {MAX_FILE_LINES}"));
        }
        if path.file_name() == Some("main.rs") && lines > MAX_MAIN_LINES {
            wrong.push(format!("{path} has {lines} lines, a main.rs has at most {MAX_MAIN_LINES}"));
        }
        if path.file_name() == Some("mod.rs") {
            wrong.push(format!("{path}: a module is foo.rs and foo/"));
        }
    }
    assert_none(&wrong, "source files");
}

#[test]
fn scripts_open_with_a_description_and_stay_short() {
    let root = &metadata().workspace_root;
    let mut wrong = Vec::new();
    for path in files(root).iter().filter(|path| path.extension() == Some("py")) {
        let text = read(root, path);
        let first = text.lines().find(|line| !line.starts_with("#!")).unwrap_or_default();
        if !first.starts_with("\"\"\"") {
            wrong.push(format!("{path} does not open with a docstring"));
        }
        if text.lines().count() > MAX_FILE_LINES {
            wrong.push(format!("{path} has more than {MAX_FILE_LINES} lines"));
        }
    }
    assert_none(&wrong, "scripts");
}

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    let metadata = metadata();
    let root = &metadata.workspace_root;
    let places = [root.as_str(), metadata.target_directory.as_str()];
    let mut wrong = Vec::new();
    for path in files(root) {
        let Ok(text) = fs_err::read_to_string(root.join(&path)) else { continue };
        wrong.extend(places.iter().filter(|place| text.contains(**place)).map(|place| format!("{path}: {place}")));
    }
    assert_none(&wrong, "files that name a path of this machine");
}

#[test]
fn links_between_documents_lead_somewhere() {
    let root = &metadata().workspace_root;
    let mut wrong = Vec::new();
    for path in files(root).iter().filter(|path| path.extension() == Some("md")) {
        let text = read(root, path);
        let base = path.parent().unwrap_or(Utf8Path::new(""));
        for link in text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next()) {
            let is_file = !link.is_empty() && !link.contains("://") && !link.contains(char::is_whitespace);
            if is_file && !root.join(base).join(link).exists() {
                wrong.push(format!("{path}: {link}"));
            }
        }
    }
    assert_none(&wrong, "links to files that do not exist");
}

#[test]
fn every_fixture_is_used_by_name() {
    let root = &metadata().workspace_root;
    let files = files(root);
    let is_text = |path: &&Utf8PathBuf| matches!(path.extension(), Some("rs" | "py" | "md" | "toml"));
    let texts: Vec<_> = files.iter().filter(is_text).map(|path| (path, read(root, path))).collect();
    let fixtures = files.iter().filter(|path| path.starts_with("fixtures"));
    let is_named = |fixture: &Utf8PathBuf| {
        let name = fixture.file_name().unwrap_or_default();
        texts.iter().any(|(path, text)| *path != fixture && text.contains(name))
    };
    let unused: Vec<_> = fixtures.filter(|path| !is_named(path)).map(ToString::to_string).collect();
    assert_none(&unused, "fixtures that no test or document names");
}
