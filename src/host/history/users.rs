//! The records of other users: members of libvirt's group change the guests that root changes, and
//! record that in directories of their own. Only root looks for them, and only for their existence:
//! their content is private.

use super::{DIRECTORY, guest};
use crate::apply::{OWN_STATE, is_shared_state};
use crate::child::Question;
use nix::unistd::{Group, Uid, User, geteuid, initgroups, setgid, setuid};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for one home directory, which may be on a network.
const LIMIT: Duration = Duration::from_secs(3);
/// The most users whose directories are examined.
const MOST: usize = 64;

/// A user's records of a domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserRecords {
    /// The user's name.
    pub user: String,
    /// The directory of all of that user's records.
    pub directory: PathBuf,
}

/// Returns the users who have recorded changes of the domain of a UUID, or objects made for it:
/// members of libvirt's group, and the user who runs this by sudo. Empty for a caller who is not
/// root, or whose records are elsewhere.
pub fn of_users(uuid: &str) -> Vec<UserRecords> {
    let is_plain = uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if !geteuid().is_root() || !is_shared_state() || uuid.is_empty() || !is_plain {
        return Vec::new();
    }
    let members = Group::from_name("libvirt").ok().flatten().map(|group| group.mem);
    let members = members.unwrap_or_default().into_iter();
    let members = members.take(MOST).filter_map(|name| User::from_name(&name).ok().flatten());
    let caller = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    let caller = caller.and_then(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten());
    let users: BTreeMap<u32, User> =
        members.chain(caller).map(|user| (user.uid.as_raw(), user)).collect();
    let others = users.into_values().filter(|user| !user.uid.is_root());
    // All are asked at once: together they take no longer than the slowest one may.
    let asked: Vec<Asked> = others.filter_map(|user| ask(user, uuid)).collect();
    asked.into_iter().filter_map(Asked::answer).collect()
}

/// A user whose records are looked for.
struct Asked {
    /// The records, if there are any.
    records: UserRecords,
    question: Question,
}

impl Asked {
    /// The records, if there are any.
    fn answer(self) -> Option<UserRecords> {
        self.question.answer().unwrap_or(false).then_some(self.records)
    }
}

/// Looks for the records of one user, with that user's rights: a home directory may be on a server
/// that trusts no root, and its links lead anywhere.
fn ask(user: User, uuid: &str) -> Option<Asked> {
    let directory = user.dir.join(OWN_STATE);
    let paths = [
        directory.join(DIRECTORY).join(uuid),
        directory.join(guest::DIRECTORY).join(format!("{uuid}.json")),
    ];
    let name = CString::new(user.name.as_str()).ok()?;
    let look = move || {
        let is_user = initgroups(&name, user.gid).is_ok()
            && setgid(user.gid).is_ok()
            && setuid(user.uid).is_ok();
        is_user && paths.iter().any(|path| path.exists())
    };
    let question = Question::ask(LIMIT, look);
    Some(Asked { records: UserRecords { user: user.name, directory }, question })
}
