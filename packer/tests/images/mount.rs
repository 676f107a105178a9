//! `mount` and `umount` with a daemon that hands out directories as layers.

use std::io::BufReader;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use dsec_format::image::Config;
use dsec_format::protocol::mountd::{ErrorKind, ImageStatus, Mounted, MountedLayer, Reply, Request, Road, Status};
use dsec_format::{ImageDigest, LayerDigest};
use dsec_mountd_client::{Client, line};
use dsec_pack::mount::{Error, daemon_at, mount, umount};

use crate::support::{Lab, need_root, run, sh};

/// A daemon that knows one image, and who holds it.
struct Stub {
    socket: PathBuf,
    holders: Arc<Mutex<Vec<String>>>,
}

impl Stub {
    fn start(lab: &Lab, layers: Vec<PathBuf>) -> Self {
        let socket = lab.path("mountd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let holders = Arc::new(Mutex::new(Vec::new()));
        let held = Arc::clone(&holders);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                while let Ok(Some(request)) = line::read(&mut stream) {
                    line::write(stream.get_mut(), &answer(request, &layers, &held)).unwrap();
                }
            }
        });
        Self { socket, holders }
    }

    fn daemon(&self) -> Client {
        daemon_at(&self.socket)
    }

    fn holders(&self) -> Vec<String> {
        self.holders.lock().unwrap().clone()
    }
}

fn answer(request: Request, layers: &[PathBuf], held: &Mutex<Vec<String>>) -> Reply {
    let image = ImageDigest::of(b"image");
    let mut held = held.lock().unwrap();
    match request {
        Request::Mount { image: spec, .. } if spec.to_string() != "known:1" => {
            Reply::Error { kind: ErrorKind::NotFound, message: format!("no image {spec}") }
        }
        Request::Mount { holder, .. } => {
            held.push(holder);
            let layer = |path: &PathBuf| MountedLayer {
                digest: LayerDigest::of(path.as_os_str().as_encoded_bytes()),
                path: path.to_str().unwrap().to_owned(),
            };
            let layers = layers.iter().map(layer).collect();
            Reply::Mounted(Mounted { image, config: Config::default(), road: Road::Erofs, layers })
        }
        Request::Release { holder } => {
            held.retain(|other| *other != holder);
            Reply::Released
        }
        Request::Status => {
            let status = ImageStatus {
                image,
                spec: "known:1".parse().unwrap(),
                road: Road::Erofs,
                holders: held.clone(),
                data_bytes: 0,
                local_bytes: 0,
                fetched_bytes: 0,
                errors: 0,
            };
            Reply::Status(Status { images: vec![status], ..Status::default() })
        }
    }
}

fn two_layers(lab: &Lab) -> Vec<PathBuf> {
    let layers = vec![lab.directory("lower"), lab.directory("upper")];
    sh(&layers[0], "echo lower >both; echo lower >only; mkdir gone");
    sh(&layers[1], "echo upper >both");
    layers
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs_err::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}

/// Unmounts. A process that another test is just starting may hold a copy of a descriptor until it has started.
fn unmounted(stub: &Stub, point: &Path) {
    for _ in 0..50 {
        match umount(&stub.daemon(), point) {
            Err(Error::Kernel { .. }) => std::thread::sleep(std::time::Duration::from_millis(20)),
            done => return done.unwrap(),
        }
    }
    panic!("{} stays busy", point.display());
}

#[test]
fn privileged_several_layers_are_one_read_only_overlay() {
    need_root();
    let lab = Lab::new();
    let stub = Stub::start(&lab, two_layers(&lab));
    let point = lab.directory("point");
    mount(&stub.daemon(), &"known:1".parse().unwrap(), &point).unwrap();
    assert_eq!(stub.holders(), [format!("directory{}", point.display())]);
    let read = |name: &str| fs_err::read_to_string(point.join(name)).unwrap();
    assert_eq!((read("both"), read("only")), ("upper\n".to_owned(), "lower\n".to_owned()));
    let refused = fs_err::write(point.join("new"), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    let again = mount(&stub.daemon(), &"known:1".parse().unwrap(), &point).unwrap_err();
    assert!(matches!(again, Error::Occupied { .. }), "{again}");
    // In use: nothing changes.
    let open = fs_err::File::open(point.join("both")).unwrap();
    assert!(matches!(umount(&stub.daemon(), &point), Err(Error::Kernel { .. })));
    assert!(is_mounted(&point) && stub.holders().len() == 1);
    drop(open);
    unmounted(&stub, &point);
    assert!(!is_mounted(&point) && stub.holders().is_empty());
    assert!(matches!(umount(&stub.daemon(), &point), Err(Error::NotMounted { .. })));
}

#[test]
fn privileged_one_layer_is_bound() {
    need_root();
    let lab = Lab::new();
    let layer = two_layers(&lab).remove(0);
    let stub = Stub::start(&lab, vec![layer]);
    let point = lab.directory("point");
    mount(&stub.daemon(), &"known:1".parse().unwrap(), &point).unwrap();
    assert_eq!(fs_err::read_to_string(point.join("only")).unwrap(), "lower\n");
    unmounted(&stub, &point);
    assert!(!is_mounted(&point) && stub.holders().is_empty());
}

#[test]
fn privileged_set_id_programs_and_devices_of_an_image_have_no_power() {
    need_root();
    let lab = Lab::new();
    let layers = two_layers(&lab);
    sh(&layers[0], "cp \"$(command -v id)\" id; chmod 4755 id; mknod -m 666 null c 1 3; chmod 755 .");
    // The temporary directory is root's alone: open the way for the user of this test.
    sh(&lab.path("."), "chmod 755 .");
    for layers in [layers.clone(), layers[..1].to_vec()] {
        let stub = Stub::start(&lab, layers);
        let point = lab.directory("point");
        mount(&stub.daemon(), &"known:1".parse().unwrap(), &point).unwrap();
        let device = fs_err::File::open(point.join("null")).map(drop);
        let done = std::process::Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .arg(point.join("id"))
            .arg("-u")
            .output();
        let written = fs_err::write(point.join("new"), "");
        unmounted(&stub, &point);
        fs_err::remove_dir(&point).unwrap();
        fs_err::remove_file(&stub.socket).unwrap();
        assert_eq!(device.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
        assert_eq!(String::from_utf8(done.unwrap().stdout).unwrap(), "65534\n");
        assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
}

#[test]
fn privileged_whatever_fails_nothing_is_held_and_foreign_mounts_stay() {
    need_root();
    let lab = Lab::new();
    let mut layers = two_layers(&lab);
    layers.push(lab.path("not-there"));
    let stub = Stub::start(&lab, layers);
    let point = lab.directory("point");
    let failed = mount(&stub.daemon(), &"known:1".parse().unwrap(), &point).unwrap_err();
    assert!(matches!(failed, Error::Kernel { .. }), "{failed}");
    assert!(!is_mounted(&point) && stub.holders().is_empty());
    let unknown = mount(&stub.daemon(), &"unknown:1".parse().unwrap(), &point).unwrap_err();
    assert!(
        matches!(unknown, Error::Daemon(dsec_mountd_client::Error::Refused { kind: ErrorKind::NotFound, .. })),
        "{unknown}"
    );
    let nowhere = mount(&stub.daemon(), &"known:1".parse().unwrap(), &lab.path("nowhere")).unwrap_err();
    assert!(matches!(nowhere, Error::Directory { .. }), "{nowhere}");

    run("mount", &["-t", "tmpfs", "tmpfs", point.to_str().unwrap()]);
    let foreign = umount(&stub.daemon(), &point);
    let kept = is_mounted(&point);
    run("umount", &[point.to_str().unwrap()]);
    assert!(matches!(foreign, Err(Error::NotOurs { .. })), "{foreign:?}");
    assert!(kept);

    // What a kill between the two steps leaves: held, not mounted.
    stub.holders.lock().unwrap().push(format!("directory{}", point.display()));
    umount(&stub.daemon(), &point).unwrap();
    assert!(stub.holders().is_empty());
}
