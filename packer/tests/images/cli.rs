//! The program: what it prints as JSON, its exit codes, its hints.

use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Lab, need_root, sh};

fn dsec_pack(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dsec-pack"));
    command.args(arguments).env("DSEC_STORE", lab.path("store")).env_remove("DSEC_TOKEN").output().unwrap()
}

#[track_caller]
fn json(lab: &Lab, arguments: &[&str]) -> serde_json::Value {
    let done = dsec_pack(lab, &[&["--json"], arguments].concat());
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).unwrap()
}

/// It fails with this code, one error, and these words in it.
#[track_caller]
fn fails(lab: &Lab, code: i32, words: &[&str], arguments: &[&str]) -> Output {
    let done = dsec_pack(lab, arguments);
    let said = String::from_utf8(done.stderr.clone()).unwrap();
    assert_eq!(done.status.code(), Some(code), "{arguments:?}: {said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("error:")).count(), 1, "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
    done
}

fn built(lab: &Lab) -> std::path::PathBuf {
    let tree = lab.directory("tree");
    sh(&tree, "mkdir d; echo file >d/file; ln -s file d/link; head -c 300000 /dev/urandom >d/noise");
    json(lab, &["build", text(&tree), "--ref", "a/tree:1"]);
    tree
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn refs_and_images() {
    let lab = Lab::new();
    built(&lab);
    let shown = json(&lab, &["show", "a/tree:1"]);
    let digest = shown["digest"].as_str().unwrap().to_owned();
    assert_eq!((shown["architecture"].is_string(), shown["layers"].as_array().unwrap().len()), (true, 1));
    json(&lab, &["tag", &digest, "b/other:2"]);
    fails(&lab, 9, &["b/other:2"], &["tag", "a/tree:1", "b/other:2", "--new"]);
    let names = |lab: &Lab, arguments: &[&str]| -> Vec<String> {
        let listed = json(lab, arguments);
        listed["refs"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&lab, &["ls"]), ["a/tree:1", "b/other:2"]);
    assert_eq!(names(&lab, &["ls", "b/"]), ["b/other:2"]);
    json(&lab, &["rm", "a/tree:1"]);
    assert_eq!(names(&lab, &["ls"]), ["b/other:2"]);
    fails(&lab, 3, &["a/tree:1"], &["rm", "a/tree:1"]);
    fails(&lab, 3, &["a/tree:1"], &["show", "a/tree:1"]);
    fails(&lab, 2, &["Not A Name"], &["show", "Not A Name"]);
}

#[test]
fn a_mistyped_name_is_told_once_with_what_may_have_been_meant() {
    let lab = Lab::new();
    built(&lab);
    let store = lab.path("store").display().to_string();
    let list = "`dsec-pack ls` lists the images of the local store, `ls --at URL|DIR` those of another";
    let expected = format!("error: no image a/tere:1 in {store}\nhint: did you mean a/tree:1? {list}\n");
    let out = lab.path("out").display().to_string();
    for arguments in [
        &["show", "a/tere:1"][..],
        &["verify", "a/tere:1"],
        &["unpack", "a/tere:1", &out],
        &["tag", "a/tere:1", "x:1"],
        &["rm", "a/tere:1"],
        &["push", "a/tere:1", &out],
        &["pull", "a/tere:1", &store],
        &["report", "a/tere:1"],
    ] {
        let done = fails(&lab, 3, &[], arguments);
        assert_eq!(String::from_utf8_lossy(&done.stderr), expected, "{arguments:?}");
    }
    let done = fails(&lab, 3, &["no image xyzzy:latest"], &["show", "xyzzy"]);
    assert!(!String::from_utf8_lossy(&done.stderr).contains("did you mean"));
}

#[test]
fn an_absent_store_is_told_as_absent_and_another_directory_as_no_store() {
    let lab = Lab::new();
    let (absent, other) = (lab.path("absent").display().to_string(), lab.directory("other"));
    let error = fails(&lab, 3, &["there is no store at", "no such directory"], &["--store", &absent, "ls"]);
    let said = String::from_utf8_lossy(&error.stderr);
    assert!(
        said.contains("hint: `dsec-pack build` and `pull` make the local store") && said.lines().count() == 2,
        "{said}"
    );
    fails(&lab, 3, &["is not a dsec store: it has no file"], &["--store", text(&other), "ls"]);
}

#[test]
fn with_json_an_error_is_one_object_in_place_of_the_result() {
    let lab = Lab::new();
    let tree = built(&lab);
    let object = |code: i32, arguments: &[&str]| -> serde_json::Value {
        let done = dsec_pack(&lab, &[&["--json"], arguments].concat());
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {done:?}");
        assert!(done.stderr.is_empty(), "{done:?}");
        serde_json::from_slice(&done.stdout).unwrap()
    };
    let missing = object(3, &["show", "nothing:1"]);
    let store = lab.path("store").display().to_string();
    let hint = "`dsec-pack ls` lists the images of the local store, `ls --at URL|DIR` those of another";
    assert_eq!(
        missing,
        serde_json::json!({"error": {
            "kind": "not_found", "message": format!("no image nothing:1 in {store}"),
            "causes": [], "hint": hint, "exit_code": 3
        }})
    );
    assert_eq!(object(2, &["show"])["error"]["kind"], "usage");
    assert_eq!(object(2, &["show", "--nonsense", "x"])["error"]["kind"], "usage");
    // What a check finds is its result, not a failure.
    sh(&tree, "touch d/new");
    let differences = object(10, &["verify", "a/tree:1", "--against", text(&tree), "--ignore", "mtime"]);
    assert_eq!(differences["against"]["compared"]["differences"], 1);
}

#[test]
fn push_and_pull_between_directories() {
    let lab = Lab::new();
    let tree = built(&lab);
    let other = lab.path("other");
    let pushed = json(&lab, &["push", "a/tree:1", text(&other), "--as", "there:1"]);
    assert_eq!((pushed["ref"]["name"].as_str(), pushed["layers"].as_u64()), (Some("there:1"), Some(1)));
    assert!(pushed["sent_bytes"].as_u64().unwrap() > 300_000);
    let again = json(&lab, &["push", "a/tree:1", text(&other), "--as", "there:1"]);
    assert_eq!((again["sent_bytes"].as_u64(), again["skipped_layers"].as_u64()), (Some(0), Some(1)));
    assert_eq!(json(&lab, &["ls", "--at", text(&other)])["refs"].as_array().unwrap().len(), 1);

    json(&lab, &["rm", "a/tree:1"]);
    json(&lab, &["pull", "there:1", text(&other), "--as", "back:1"]);
    json(&lab, &["verify", "back:1", "--against", text(&tree)]);
    fails(&lab, 3, &["nothing:1"], &["pull", "nothing:1", text(&other)]);
    fails(&lab, 3, &["no-such-store"], &["pull", "there:1", text(&lab.path("no-such-store"))]);
    fails(&lab, 6, &["http://127.0.0.1:9"], &["push", "back:1", "http://127.0.0.1:9"]);
}

#[test]
fn verify_and_fsck_have_a_code_for_what_they_find() {
    let lab = Lab::new();
    let tree = built(&lab);
    let same = json(&lab, &["verify", "a/tree:1", "--against", text(&tree)]);
    assert_eq!(same["against"]["compared"]["differences"].as_u64(), Some(0));
    sh(&tree, "chmod 600 d/file; touch d/new");
    let done = fails(&lab, 10, &["differs"], &["verify", "a/tree:1", "--against", text(&tree)]);
    let said = String::from_utf8(done.stdout).unwrap();
    for line in ["/d/file: mode: image 0644, directory 0600", "/d/new: extra: only in the directory (file)"] {
        assert!(said.contains(line), "{line:?} is not in {said}");
    }
    let ignored = ["verify", "a/tree:1", "--against", text(&tree), "--ignore", "mode,extra,mtime"];
    json(&lab, &ignored);
    fails(&lab, 3, &["nowhere"], &["verify", "a/tree:1", "--against", "/nowhere"]);

    json(&lab, &["fsck"]);
    sh(
        &lab.path("store/packs"),
        "f=$(find . -type f | head -1); chmod u+w $f; printf damaged! | dd of=$f bs=1 seek=1000 conv=notrunc status=none",
    );
    let found = fails(&lab, 10, &["store"], &["fsck"]);
    assert!(String::from_utf8(found.stdout).unwrap().contains("not whole"));
    fails(&lab, 10, &["a/tree:1"], &["verify", "a/tree:1"]);
    fails(&lab, 5, &[], &["unpack", "a/tree:1", text(&lab.path("out"))]);
    assert!(!lab.path("out").exists());
}

#[test]
fn reports_and_diffs() {
    let lab = Lab::new();
    built(&lab);
    let upper = lab.directory("upper");
    sh(&upper, "mkdir d; echo more >d/more");
    let arguments =
        ["pack-diff", "--upper", text(&upper), "--parent", "a/tree:1", "--ref", "a/diff:1", "--author", "me"];
    let packed = json(&lab, &arguments);
    let shown = json(&lab, &["show", "a/diff:1"]);
    assert_eq!(shown["digest"], packed["image"]);
    assert_eq!(
        (shown["provenance"]["parent"].clone(), &shown["provenance"]["author"]),
        (packed["parent"].clone(), &"me".into())
    );
    let report = json(&lab, &["report", "a/tree:1", "a/diff:1"]);
    let images = report["images"].as_array().unwrap();
    assert_eq!((images.len(), images[1]["layers"].as_u64()), (2, Some(2)));
    assert!(images[1]["marginal_bytes"].as_u64().unwrap() < 3000, "{report}");
    let all = json(&lab, &["report"]);
    assert_eq!(all["total"]["stored_bytes"], report["total"]["stored_bytes"]);

    fails(&lab, 6, &["edge.sock"], &["pack-diff", "s-1", "a/diff:2", "--edge", text(&lab.path("edge.sock"))]);
    fails(&lab, 3, &["none"], &["pack-diff", "--upper", text(&upper), "--parent", "none", "--ref", "x"]);
    fails(&lab, 3, &["missing"], &["pack-diff", "--upper", text(&lab.path("missing")), "--parent", "a/tree:1"]);
    sh(&upper, "chmod 700 d");
    fails(&lab, 6, &["mountd.sock"], &["mount", "a/tree:1", text(&upper), "--mountd", text(&lab.path("mountd.sock"))]);
}

#[test]
fn privileged_a_user_without_rights_is_told_what_it_takes() {
    need_root();
    let lab = Lab::new();
    let tree = lab.directory("tree");
    sh(&tree, "mkdir -p locked; echo x >locked/file; mknod null c 1 3; chown 5 locked/file; chmod 500 locked");
    json(&lab, &["build", text(&tree), "--ref", "t:1"]);
    // The temporary directory is root's alone: open the way for the user of this test.
    sh(&lab.path("."), "chmod 755 .; mkdir user; chown 65534:65534 user; chmod -R a+rX store");
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", env!("CARGO_BIN_EXE_dsec-pack")]);
        command.args(arguments).env("DSEC_STORE", lab.path("store")).output().unwrap()
    };
    let out = lab.path("user/out");
    let refused = as_user(&["unpack", "t:1", text(&out)]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(7), "{said}");
    for word in ["4 entries belong to others", "1 are devices", "--no-same-owner"] {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
    assert!(!out.exists());
    let done = as_user(&["unpack", "t:1", text(&out), "--no-same-owner", "--json"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let stats: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(stats["left_out"]["devices"].as_u64(), Some(1));
    assert_eq!(fs_err::read_to_string(out.join("locked/file")).unwrap(), "x\n");
    // A read-only directory of half a tree does not keep the next try from removing it.
    sh(&lab.path("user"), "mv out .again.dsec-unpack");
    let again = as_user(&["unpack", "t:1", text(&lab.path("user/again")), "--no-same-owner"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
}
