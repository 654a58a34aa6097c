//! Images that are fetched over https from a vendor's server, with its checksums and signatures,
//! and every way in which that fails.

use super::files;
use super::image::{Place, disk, sum};
use crate::support::{machine, project, run, skip};
use nix::mount::{MsFlags, mount, umount};
use serde_json::Value;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The host name of the server's certificate, which only its proxy knows.
const NAME: &str = "vendor.test";

/// A vendor's server, which ends with this.
struct Vendor {
    /// The pool of the images.
    place: Place,
    /// Its files, its certificate and the table of images.
    dir: tempfile::TempDir,
    /// The server's process.
    server: Child,
    /// The ports of server and proxy.
    ports: [u16; 2],
}

impl Drop for Vendor {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Vendor {
    /// Starts it; none if the machine cannot have it.
    fn new(pool: &'static str) -> Option<Vendor> {
        for program in ["curl", "openssl", "gpg", "gpgv"] {
            if !Path::new("/usr/bin").join(program).exists() {
                return skip(format!("{program} is not installed"));
            }
        }
        let place = Place::new(pool)?;
        // A cache of its own: two tests fetch at once.
        machine::enter();
        let (cache, mode) = ("/var/cache/gpuvm", Some("mode=700"));
        mount(Some("tmpfs"), cache, Some("tmpfs"), MsFlags::empty(), mode).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("files")).unwrap();
        let names = format!("subjectAltName=DNS:{NAME},DNS:localhost,IP:127.0.0.1");
        let mut make = Command::new("openssl");
        make.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
        make.args(["-subj", "/CN=vendor", "-addext", &names, "-keyout"]);
        make.arg(at("key.pem")).arg("-out").arg(at("ca.pem"));
        let (code, _, err) = run(&mut make);
        assert_eq!(code, 0, "{err}");
        let mut server = Command::new("/usr/bin/python3")
            .arg(project().join("tests/libvirt/vendor.py"))
            .args([at("files"), at("ca.pem"), at("key.pem")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ports: Vec<u16> = line.split_whitespace().map(|port| port.parse().unwrap()).collect();
        Some(Vendor { place, dir, server, ports: [ports[0], ports[1]] })
    }

    /// Publishes a file.
    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join("files").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The URL of a file, served in a manner.
    fn url(&self, manner: &str, name: &str) -> String {
        format!("https://localhost:{}/{manner}/{name}", self.ports[0])
    }

    /// Writes the table of known images: `a`, whose files are served in a manner, with further
    /// lines.
    fn table(&self, url: &str, more: &str) {
        let text = format!("[image.a]\nurl = \"{url}\"\nca = \"ca.pem\"\n{more}\n");
        fs::write(self.dir.path().join("images.toml"), text).unwrap();
    }

    /// The command that adds an image.
    fn command(&self, args: &[&str]) -> Command {
        let table = self.dir.path().join("images.toml");
        let mut command = self.place.command(&["add"]);
        command.args(args).arg("--images").arg(table);
        let proxies =
            ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"];
        for name in proxies {
            command.env_remove(name);
        }
        command
    }

    /// Adds an image; its exit code and its outputs.
    fn add(&self, args: &[&str]) -> (i32, String, String) {
        run(&mut self.command(args))
    }

    /// Adds an image, which must succeed, and takes it away again. Returns the answer.
    fn added(&self, args: &[&str]) -> Value {
        let (code, out, err) = self.add(&[args, &["--json"]].concat());
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        let added: Value = serde_json::from_str(&out).unwrap();
        let name = added["name"].as_str().unwrap().to_owned();
        let volume = self.place.volumes.join(added["volume"].as_str().unwrap());
        assert_eq!(added["sha256"], sum(volume.to_str().unwrap()).to_string());
        self.place.done(&["remove", &name, "--yes"]);
        added
    }

    /// Expects that adding is refused with this code, and leaves no image. Returns the message.
    fn refused(&self, args: &[&str], code: &str) -> String {
        let (status, out, err) = self.add(&[args, &["--json"]].concat());
        let failure: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        assert_eq!((status, failure["code"].as_str()), (1, Some(code)), "{args:?}: {out}{err}");
        assert_eq!(files(&self.place.volumes), [""; 0], "{args:?}");
        format!(
            "{} {} {}",
            failure["message"].as_str().unwrap(),
            failure["causes"],
            failure["hint"]
        )
    }

    /// The requests so far, which are forgotten.
    fn requests(&self) -> Vec<String> {
        let file = self.dir.path().join("files/requests");
        let text = fs::read_to_string(&file).unwrap_or_default();
        let _ = fs::remove_file(file);
        text.lines().map(str::to_owned).collect()
    }
}

/// The files of the cache.
fn cached() -> Vec<String> {
    files(Path::new("/var/cache/gpuvm"))
}

/// The sum of a file by a program.
fn by(program: &str, path: &Path) -> String {
    let (code, out, err) = run(Command::new(program).arg(path));
    assert_eq!(code, 0, "{err}");
    out.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn an_image_is_fetched_by_name_and_by_url_with_the_vendors_checksum() {
    let Some(vendor) = Vendor::new("image-fetch") else { return };
    let file = vendor.put("a.img", &disk(1 << 20));
    let (sha512, sha256) = (by("sha512sum", &file), by("sha256sum", &file));
    vendor.put("SHA512SUMS", format!("{sha512}  a.img\n").as_bytes());
    vendor.table(&vendor.url("plain", "a.img"), "");
    let added = vendor.added(&["a"]);
    let list = vendor.url("plain", "SHA512SUMS");
    assert_eq!(added["verified"]["published"]["list"], list, "{added}");
    assert_eq!(added["url"], vendor.url("plain", "a.img"));
    assert_eq!(cached(), [""; 0]);
    // The form of BSD, in the list that is named, and in that of the file.
    for list in ["CHECKSUM", "a.img.CHECKSUM"] {
        fs::remove_file(vendor.dir.path().join("files/SHA512SUMS")).ok();
        vendor.put(list, format!("SHA256 (a.img) = {sha256}\n").as_bytes());
        let added = vendor.added(&["a"]);
        assert_eq!(added["verified"]["published"]["list"], vendor.url("plain", list));
        fs::remove_file(vendor.dir.path().join("files").join(list)).unwrap();
    }
    // A redirect, which keeps the list's place; without a list it comes with a warning.
    vendor.table(&vendor.url("away", "a.img"), "");
    let (code, out, err) = vendor.add(&["a"]);
    assert!(code == 0 && err.contains("is not verified"), "{out}{err}");
    vendor.place.done(&["remove", "a", "--yes"]);
    let added = vendor.added(&["a", "--sha512", &sha512, "--name", "b"]);
    assert_eq!((&added["name"], &added["verified"]), (&"b".into(), &"given".into()));
    // A known image whose list does not have it does not come.
    vendor.table(&vendor.url("plain", "a.img"), "sums = [\"SHA256SUMS\"]");
    vendor.refused(&["a"], "image-unlisted");
    vendor.put("SHA256SUMS", format!("{sha256}  other.img\n").as_bytes());
    vendor.refused(&["a"], "image-unlisted");
    let (code, _, err) = vendor.add(&["a", "--sha256", &sha256, "--dry-run"]);
    assert_eq!(code, 0, "{err}");
    // A file fetched by a dry run is not fetched again.
    vendor.requests();
    vendor.added(&["a", "--sha256", &sha256]);
    assert_eq!(vendor.requests(), ["/plain/a.img bytes=1048576-"]);
    // A URL with the system's certificates: this server is none of theirs.
    let message = vendor.refused(&[&vendor.url("plain", "a.img")], "fetch-untrusted");
    assert!(message.contains("identity"), "{message}");
    // A file of that name is here, too.
    fs::write(vendor.place.files.join("a"), disk(1 << 16)).unwrap();
    let mut both = vendor.command(&["a"]);
    let (code, _, err) = run(both.current_dir(&vendor.place.files));
    assert!(code == 2 && err.contains("`gpuvm image add ./a`"), "{err}");
}

#[test]
fn a_transfer_that_breaks_off_is_continued_where_it_ended() {
    let Some(vendor) = Vendor::new("image-resume") else { return };
    let file = vendor.put("a.img", &disk(1 << 20));
    vendor.put("SHA256SUMS", format!("{}  a.img\n", by("sha256sum", &file)).as_bytes());
    let parts = |vendor: &Vendor| -> Vec<String> {
        vendor.requests().into_iter().filter(|line| line.contains("a.img")).collect()
    };
    vendor.table(&vendor.url("broken", "a.img"), "");
    vendor.added(&["a"]);
    let ranges = ["None", "bytes=262144-", "bytes=524288-", "bytes=786432-"];
    assert_eq!(parts(&vendor), ranges.map(|range| format!("/broken/a.img {range}")));
    // A slow one that is killed is continued by the next.
    vendor.table(&vendor.url("slow", "a.img"), "");
    let mut slow =
        vendor.command(&["a"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = || {
        let cache = Path::new("/var/cache/gpuvm");
        let mut parts = fs::read_dir(cache).into_iter().flatten().flatten();
        parts.any(|part| part.metadata().is_ok_and(|meta| meta.len() > 0))
    };
    while !begun() {
        assert_eq!(slow.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // Another one waits for nothing while it runs.
    assert!(vendor.refused(&["a"], "in-use").contains("is fetching"));
    slow.kill().unwrap();
    slow.wait().unwrap();
    parts(&vendor);
    vendor.table(&vendor.url("plain", "a.img"), "");
    vendor.added(&["a"]);
    let asked = parts(&vendor);
    assert!(asked.len() == 1 && !asked[0].ends_with("None"), "{asked:?}");
    // A server that sends no parts is asked for all of it again.
    fs::write("/var/cache/gpuvm/".to_owned() + &by("sha256sum", &file) + ".part", [7; 4096])
        .unwrap();
    vendor.table(&vendor.url("norange", "a.img"), "");
    vendor.added(&["a"]);
    // One that makes no progress is given up, and the fetched part stays.
    vendor.table(&vendor.url("broken-norange", "a.img"), "");
    let message = vendor.refused(&["a"], "fetch-broken-off");
    assert!(message.contains("continues where it broke off"), "{message}");
    vendor.table(&vendor.url("dead", "a.img"), "");
    vendor.refused(&["a"], "fetch-broken-off");
    assert_eq!(cached().len(), 1);
    // Its first bytes are of another image: they do not come in, and are gone.
    fs::write("/var/cache/gpuvm/".to_owned() + &cached()[0], [7; 4096]).unwrap();
    vendor.table(&vendor.url("plain", "a.img"), "");
    vendor.refused(&["a"], "image-other-sum");
    assert_eq!(cached(), [""; 0]);
    vendor.added(&["a"]);
    // Without a length it comes, too.
    vendor.table(&vendor.url("unknown", "a.img"), "");
    vendor.added(&["a"]);
}

#[test]
fn refused_and_wrong_downloads_are_not_added() {
    let Some(vendor) = Vendor::new("image-refused") else { return };
    let file = vendor.put("a.img", &disk(1 << 20));
    let table = |manner: &str| vendor.table(&vendor.url(manner, "a.img"), "");
    for (manner, code) in
        [("refused", "fetch-status"), ("http", "fetch-redirected"), ("loop", "fetch-redirected")]
    {
        table(manner);
        vendor.refused(&["a", "--sha256", &"0".repeat(64)], code);
    }
    vendor.table(&vendor.url("plain", "absent.img"), "");
    let message = vendor.refused(&["a"], "fetch-absent");
    assert!(message.contains("404") && message.contains("image list --known"), "{message}");
    vendor.table("https://127.0.0.1:1/a.img", "");
    assert!(vendor.refused(&["a"], "fetch-unreachable").contains("https_proxy"));
    // Another sum, by SHA-512 and SHA-256.
    for (list, sum) in [("SHA512SUMS", "0".repeat(128)), ("SHA256SUMS", "1".repeat(64))] {
        table("plain");
        vendor.put(list, format!("{sum}  a.img\n").as_bytes());
        let message = vendor.refused(&["a"], "image-other-sum");
        assert!(message.contains(list) && message.contains(&sum), "{message}");
        fs::remove_file(vendor.dir.path().join("files").join(list)).unwrap();
    }
    vendor.put("SHA256SUMS", b"<html>not found</html>\n");
    vendor.refused(&["a"], "checksum-line");
    // The disk of the cache is full, and then has room: the fetched part is there.
    vendor.put("SHA256SUMS", format!("{}  a.img\n", by("sha256sum", &file)).as_bytes());
    let small = Some("size=17000k");
    let cache = "/var/cache/gpuvm";
    let dir = [("full", small), ("whole", None)];
    for (step, size) in dir {
        mount(Some("tmpfs"), cache, Some("tmpfs"), MsFlags::empty(), size.or(Some("mode=700")))
            .unwrap();
        if size.is_some() {
            fs::set_permissions(cache, std::os::unix::fs::PermissionsExt::from_mode(0o700))
                .unwrap();
            let message = vendor.refused(&["a"], "fetch-disk-full");
            assert!(message.contains(cache) && message.contains("make room"), "{message}");
        } else {
            vendor.added(&["a"]);
        }
        umount(cache).unwrap_or_else(|e| panic!("{step}: {e}"));
    }
    // Others may write into the cache.
    fs::set_permissions(cache, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert!(vendor.refused(&["a"], "system").contains("others may write"));
    fs::set_permissions(cache, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn a_proxy_of_the_environment_is_used() {
    let Some(vendor) = Vendor::new("image-proxy") else { return };
    let file = vendor.put("a.img", &disk(1 << 20));
    vendor.put("SHA256SUMS", format!("{}  a.img\n", by("sha256sum", &file)).as_bytes());
    // This name has no address here.
    vendor.table(&format!("https://{NAME}/plain/a.img"), "");
    vendor.refused(&["a"], "fetch-unreachable");
    for variable in ["https_proxy", "HTTPS_PROXY", "all_proxy"] {
        let proxy = format!("http://127.0.0.1:{}", vendor.ports[1]);
        let (code, out, err) = run(vendor.command(&["a"]).env(variable, proxy));
        assert_eq!(code, 0, "{variable}: {out}{err}");
        vendor.place.done(&["remove", "a", "--yes"]);
    }
    let asked = vendor.requests();
    assert!(asked.contains(&format!("proxy CONNECT {NAME}:443 HTTP/1.1")), "{asked:?}");
}

#[test]
fn a_list_is_signed_by_the_vendors_key_where_its_keyring_is_there() {
    let Some(vendor) = Vendor::new("image-signed") else { return };
    let file = vendor.put("a-2.img", &disk(1 << 20));
    vendor.put("a-1.img", b"old");
    let home = vendor.dir.path().join("gnupg");
    fs::create_dir(&home).unwrap();
    fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let gpg = |args: &[&str]| {
        let mut command = Command::new("gpg");
        command.arg("--homedir").arg(&home).args([
            "--batch",
            "--yes",
            "--quiet",
            "--passphrase",
            "",
        ]);
        let (code, out, err) = run(command.args(args).current_dir(vendor.dir.path()));
        assert_eq!(code, 0, "{args:?}: {err}");
        out
    };
    for user in ["vendor", "thief"] {
        gpg(&["--quick-generate-key", user, "ed25519", "sign", "never"]);
        let (key, armour) = (format!("{user}.gpg"), format!("{user}-1.asc"));
        gpg(&["--output", &key, "--export", user]);
        gpg(&["--armor", "--output", &armour, "--export", user]);
    }
    let line = format!("{}  a-2.img\n", by("sha256sum", &file));
    let list = vendor.put("b-2-CHECKSUM", line.as_bytes());
    let list = list.to_str().unwrap();
    let table = |signature: &str, keyring: &str| {
        let more = format!(
            "sums = \"b-*-CHECKSUM\"\nsignature = \"{signature}\"\nkeyrings = [\"{keyring}\"]"
        );
        // The newest of the directory.
        vendor.table(&vendor.url("plain", "a-*.img"), &more);
    };
    let key = |added: &Value| added["verified"]["published"]["signed_by"].as_str().map(str::len);
    table("{list}.gpg", "vendor.gpg");
    // The list has no signature, or another's.
    vendor.refused(&["a"], "image-not-signed");
    gpg(&["--local-user", "thief", "--detach-sign", "--output", &format!("{list}.gpg"), list]);
    vendor.refused(&["a"], "image-not-signed");
    gpg(&["--local-user", "vendor", "--detach-sign", "--output", &format!("{list}.gpg"), list]);
    let added = vendor.added(&["a"]);
    assert_eq!((key(&added), &added["url"]), (Some(40), &vendor.url("plain", "a-2.img").into()));
    table("{list}.gpg", "vendor-*.asc");
    assert_eq!(key(&vendor.added(&["a"])), Some(40));
    // Without a keyring it is not checked, and said so.
    table("{list}.gpg", "absent.gpg");
    let (code, _, err) = vendor.add(&["a"]);
    assert!(code == 0 && err.contains("is not checked") && err.contains("absent.gpg"), "{err}");
    vendor.place.done(&["remove", "a", "--yes"]);
    // Around the text; what stands beside the signed part does not count.
    let plain = vendor.dir.path().join("plain");
    fs::write(&plain, &line).unwrap();
    let signed = vendor.dir.path().join("signed");
    let (plain, out) = (plain.to_str().unwrap(), signed.to_str().unwrap());
    gpg(&["--local-user", "vendor", "--clearsign", "--output", out, plain]);
    fs::copy(&signed, list).unwrap();
    table("inline", "vendor.gpg");
    assert_eq!(key(&vendor.added(&["a"])), Some(40));
    let evil = format!("{}  a-2.img\n\n{}", "0".repeat(64), fs::read_to_string(&signed).unwrap());
    fs::write(list, evil).unwrap();
    let added = vendor.added(&["a"]);
    assert_eq!(key(&added), Some(40), "{added}");
}
