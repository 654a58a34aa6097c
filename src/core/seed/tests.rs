//! Seeds as cloud-init reads them.

use super::*;
use std::io::{Cursor, Read as _};

/// A key of the right form.
fn key() -> SshKey {
    let body = format!("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA{} me@here", "a".repeat(44));
    SshKey::read_all(&body).unwrap().remove(0)
}

/// A seed with all of our settings.
fn seed() -> Seed {
    Seed {
        host_name: "train-a".into(),
        instance: "i-1".into(),
        user: Some("lab".into()),
        ssh_keys: vec![key()],
        guest_agent: true,
        data_disk: true,
        fabric_wait: true,
        nccl_conf: false,
        ..Seed::default()
    }
}

fn config(files: &[(&'static str, String)], name: &str) -> Value {
    let (_, text) = files.iter().find(|(file, _)| *file == name).expect("the file is there");
    serde_json::from_str(text.strip_prefix("#cloud-config\n").expect("the first line")).unwrap()
}

#[test]
fn a_seed_says_who_may_log_in() {
    let files = seed().files();
    assert_eq!(files.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["meta-data", "user-data"]);
    let config = config(&files, "user-data");
    assert_eq!(config["users"][0]["name"], "lab");
    assert_eq!(config["users"][0]["ssh_authorized_keys"][0], key().as_str());
    assert_eq!(config["users"][0]["lock_passwd"], true);
    assert_eq!(config["ssh_pwauth"], false);
    let commands: Vec<String> =
        config["runcmd"].as_array().unwrap().iter().map(ToString::to_string).collect();
    assert!(commands[0].contains("mkfs.ext4") && commands[4].contains("qemu-guest-agent"));
    let meta: Value = serde_json::from_str(&files[0].1).unwrap();
    assert_eq!((&meta["instance-id"], &meta["local-hostname"]), (&json!("i-1"), &json!("train-a")));
    let plain =
        Seed { user: None, guest_agent: false, data_disk: false, fabric_wait: false, ..seed() };
    let config = self::config(&plain.files(), "user-data");
    assert_eq!(config["ssh_authorized_keys"][0], key().as_str());
    assert!(config.get("users").is_none() && config.get("runcmd").is_none());
}

#[test]
fn nodes_of_an_imex_domain_are_the_same_list_in_each_guest() {
    let written = |addresses: &[&str]| {
        let imex_nodes = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let config = config(&Seed { imex_nodes, ..Seed::default() }.files(), "user-data");
        let files = config["write_files"].as_array().unwrap().clone();
        let commands = config["runcmd"].as_array().unwrap().clone();
        (files, commands)
    };
    let (files, commands) = written(&["10.0.0.11", "10.0.0.9", "10.0.0.11"]);
    assert_eq!(files[0]["path"], "/etc/nvidia-imex/nodes_config.cfg");
    assert_eq!(files[0]["content"], "10.0.0.9\n10.0.0.11\n");
    assert_eq!(files[1]["content"], "options nvidia NVreg_CreateImexChannel0=1\n");
    assert_eq!((files.len(), commands.len()), (2, 1));
    assert_eq!(written(&["10.0.0.9", "10.0.0.11"]), (files, commands));
    // Without the files, the commands that need them are left out, too.
    let own = Seed {
        imex_nodes: vec!["10.0.0.9".parse().unwrap()],
        user_data: Some("#cloud-config\nwrite_files: []\n".into()),
        ..Seed::default()
    };
    assert!(config(&own.files(), "vendor-data").get("runcmd").is_none());
}

#[test]
fn values_from_outside_stay_in_their_places() {
    let nasty = "x\"}\n- evil: [1]\n#cloud-config";
    let seed = Seed { host_name: nasty.into(), user: Some(nasty.into()), ..seed() };
    let config = config(&seed.files(), "user-data");
    assert_eq!((&config["hostname"], &config["users"][0]["name"]), (&json!(nasty), &json!(nasty)));
}

#[test]
fn the_admins_user_data_stays_as_it_is_and_ours_comes_second() {
    let given = "#!/bin/sh\necho 'äöü' $(date)\n";
    let seed = Seed {
        user_data: Some(given.into()),
        network_config: Some("version: 2\n".into()),
        ..seed()
    };
    let files = seed.files();
    let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["meta-data", "user-data", "vendor-data", "network-config"]);
    assert_eq!(files[1].1, given);
    assert_eq!(config(&files, "vendor-data")["users"][0]["name"], "lab");
}

#[test]
fn several_nics_all_come_up_and_the_boot_waits_for_the_first() {
    let nics = |count: usize| (0..count).map(|nth| format!("52:54:00:00:00:0{nth}")).collect();
    let with = |count| Seed { nics: nics(count), ..seed() };
    let network = |seed: &Seed| {
        let files = seed.files().into_iter();
        files.filter(|(name, _)| *name == "network-config").map(|(_, text)| text).next()
    };
    assert_eq!((network(&with(0)), network(&with(1))), (None, None));
    let read: Value = serde_json::from_str(&network(&with(3)).unwrap()).unwrap();
    assert_eq!(read["version"], 2);
    let found: Vec<_> = read["ethernets"].as_object().unwrap().values().collect();
    assert_eq!(found.len(), 3);
    for (nth, nic) in found.iter().enumerate() {
        assert_eq!(nic["match"]["macaddress"], format!("52:54:00:00:00:0{nth}"));
        assert_eq!(nic["dhcp4"], true);
        assert_eq!(nic["dhcp4-overrides"]["route-metric"], 100 * (nth + 1));
        assert_eq!(nic.get("optional").is_some(), nth > 0, "{nic}");
    }
    let own = Seed { network_config: Some("version: 2\n".into()), ..with(3) };
    assert_eq!(network(&own).as_deref(), Some("version: 2\n"));
}

#[test]
fn the_volume_holds_the_files_and_is_the_same_twice() {
    let bytes = volume(&seed()).unwrap();
    assert_eq!(bytes, volume(&seed()).unwrap());
    assert!(is_seed(&bytes[..512]) && !is_seed(&bytes[512..1024]) && !is_seed(b""));
    let system = fatfs::FileSystem::new(Cursor::new(bytes), fatfs::FsOptions::new()).unwrap();
    assert_eq!(system.volume_label(), "CIDATA");
    for (name, content) in seed().files() {
        let mut read = String::new();
        system.root_dir().open_file(name).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, content, "{name}");
    }
}

#[test]
fn an_invalid_public_key_is_refused_with_its_line() {
    let good = key();
    for (text, line, reason) in [
        ("", 1, "no key"),
        ("# only a comment\n", 1, "no key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", 1, "private key"),
        ("ssh-dss AAAAB3NzaC1kc3MAAACB", 1, "ssh-dss"),
        ("hello world", 1, "hello"),
        ("ssh-rsa AAAA", 1, "base64"),
        (
            "ssh-rsa not-base64-at-all-but-long-enough-to-be-one-if-it-were-one-of-these",
            1,
            "base64",
        ),
        (&format!("{}\nbogus", good.as_str()), 2, "bogus"),
        (&format!("{}\u{1b}[2J", good.as_str()), 1, "control"),
    ] {
        let error = SshKey::read_all(text).unwrap_err().to_string();
        assert!(
            error.contains(&format!("line {line}")) && error.contains(reason),
            "{text:?}: {error}"
        );
    }
    assert_eq!(SshKey::read_all(&format!("# me\n\n{}\n", good.as_str())).unwrap(), [good]);
}

#[test]
fn a_password_is_taken_only_as_a_hash_and_never_repeated() {
    let hash = format!("$6$saltsalt${}", "h".repeat(86));
    assert_eq!(&*password_hash(&format!("{hash}\n")).unwrap(), hash);
    assert!(password_hash(&format!("$y$j9T$salt${}", "h".repeat(43))).is_ok());
    for bad in [
        "secret",
        "",
        "$6$",
        "$1$salt$hashhashhashhashhashhh",
        "$6$salt$short",
        "$9$a$bbbbbbbbbbbbbbbbbbbbbbbbbbb",
    ] {
        let error = password_hash(bad).unwrap_err().to_string();
        assert!(bad.is_empty() || bad == "$6$" || !error.contains(bad), "{error}");
    }
    let secret = || Some(hash.clone().into());
    let seed = Seed { password_hash: secret(), user_data: secret(), ..seed() };
    assert!(!format!("{seed:?}").contains("saltsalt"), "{seed:?}");
    let seed = Seed { user_data: None, ..seed };
    let config = config(&seed.files(), "user-data");
    assert_eq!(
        (&config["users"][0]["hashed_passwd"], &config["ssh_pwauth"]),
        (&json!(hash), &json!(true))
    );
}

#[test]
fn documents_that_cloud_init_would_ignore_are_refused() {
    for good in [
        "#cloud-config\n{}",
        "#!/bin/sh\n",
        "#include\nhttp://x/",
        "Content-Type: multipart/mixed\n",
        "## template: jinja\n",
    ] {
        user_data(good).unwrap();
    }
    for (bad, reason) in [
        ("", "empty"),
        (" \n", "empty"),
        ("users: []\n", "first line"),
        ("#cloud-config\n\0", "NUL byte at 14"),
        (&"#!".repeat(300 << 10), "more than"),
    ] {
        let error = user_data(bad).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    for name in ["lab", "_x", "a-b2"] {
        user_name(name).unwrap();
    }
    for name in ["", "Root", "a b", "-x", "1a", "a:b", &"x".repeat(33)] {
        user_name(name).unwrap_err();
    }
}

#[test]
fn a_host_name_is_made_of_a_domains_name() {
    for (domain, host) in [
        ("train-a", "train-a"),
        ("gpuvm-0g.2", "gpuvm-0g-2"),
        ("odd-2g0+5", "odd-2g0-5"),
        ("_x_", "x"),
        ("___", "guest"),
    ] {
        assert_eq!(host_name(domain), host);
    }
    assert_eq!(host_name(&"x.".repeat(60)).len(), 63);
}

#[test]
fn settings_replaced_by_the_admins_user_data_are_reported() {
    let overruled = |text: &str| Seed { user_data: Some(text.into()), ..seed() }.overruled();
    assert_eq!(overruled("#cloud-config\nruncmd: [a]\nusers :\n- b\n"), ["runcmd", "users"]);
    assert_eq!(overruled("#cloud-config\n\"runcmd\": [a]\n'users' : [b]\n"), ["runcmd", "users"]);
    assert_eq!(overruled("#cloud-config\n{\"a\": {\"users\": 1},\n \"runcmd\": []}\n"), ["runcmd"]);
    assert_eq!(overruled("#cloud-config\n  runcmd: [a]\nruncmds: 1\n"), [""; 0]);
    assert_eq!(Seed { user_data: None, ..seed() }.overruled(), [""; 0]);
}

#[test]
#[allow(clippy::disallowed_methods)] // Another program judges.
fn cloud_init_finds_the_volume_as_it_looks_for_it() {
    // cloud-init accepts file systems that blkid calls vfat or iso9660 and whose label is cidata or
    // CIDATA.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), volume(&seed()).unwrap()).unwrap();
    let mut blkid = std::process::Command::new("/usr/sbin/blkid");
    blkid.args(["-p", "-o", "export"]);
    let output = blkid.arg(file.path()).output().expect("blkid is on every Linux");
    let output = String::from_utf8(output.stdout).unwrap();
    for line in ["TYPE=vfat", "LABEL=CIDATA"] {
        assert!(output.lines().any(|output| output == line), "no {line}:\n{output}");
    }
}

#[test]
fn the_file_for_nccl_is_written_where_nccl_finds_it() {
    let nccl = Some("<system version=\"1\">\n</system>\n".to_owned());
    let alone = Seed { nccl: nccl.clone(), fabric_wait: false, ..seed() };
    let config_of = config(&alone.files(), "user-data");
    let files = config_of["write_files"].as_array().unwrap();
    let paths: Vec<_> = files.iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/etc/nccl-topo.xml", "/etc/tmpfiles.d/nccl-topo.conf"]);
    assert_eq!(files[0]["content"], nccl.clone().unwrap());
    let link = "L+ /run/nvidia-topologyd/virtualTopology.xml - - - - /etc/nccl-topo.xml\n";
    assert!(files[1]["content"].as_str().unwrap().ends_with(link));
    assert!(files.iter().all(|file| file["permissions"] == "0644"));
    let create = json!(["systemd-tmpfiles", "--create", "nccl-topo.conf"]);
    assert!(config_of["runcmd"].as_array().unwrap().contains(&create));
    assert!(!config_of["runcmd"].to_string().contains("/etc/nccl.conf"));
    let named = Seed { nccl_conf: true, ..alone };
    let config_of = config(&named.files(), "user-data");
    assert_eq!(config_of["runcmd"].as_array().unwrap()[2], json!(["sh", "-c", place::APPEND]));
    // Along with the files of a guest on a shared fabric, but not if the user-data has files of its
    // own.
    let both = Seed { nccl, user_data: Some("#cloud-config\nwrite_files: []\n".into()), ..seed() };
    assert_eq!(config(&both.files(), "vendor-data")["write_files"].as_array().unwrap().len(), 4);
    assert_eq!(both.overruled(), ["write_files"]);
    // Nor are the commands that need those files.
    let commands = config(&both.files(), "vendor-data")["runcmd"].to_string();
    assert!(!commands.contains("nccl-topo") && !commands.contains("fabric-wait"), "{commands}");
    assert!(commands.contains("qemu-guest-agent"), "{commands}");
    assert!(
        config(&Seed { fabric_wait: false, ..seed() }.files(), "user-data")
            .get("write_files")
            .is_none()
    );
}
