//! The steps on networks, on a fake that fails at configured calls.

use super::*;
use crate::apply::NetworkStep;
use crate::hypervisor::network::{NetworkLease, NetworkState, Networks};
use gpuvm_core::network::{Kind, Network};

/// A hypervisor's networks in memory.
#[derive(Default)]
pub struct FakeNetworks {
    all: RefCell<BTreeMap<String, NetworkState>>,
    /// Calls that change something, so far.
    calls: Cell<usize>,
    fails: Vec<usize>,
    /// Whether it stores another MTU than given.
    lies: bool,
}

fn failed(kind: HypervisorErrorKind, message: &str) -> HypervisorError {
    HypervisorError { kind, doing: "network".into(), message: message.into() }
}

impl FakeNetworks {
    /// Counts a call, fails it if configured, and changes an existing network.
    fn change(
        &self,
        name: &str,
        change: impl FnOnce(&mut NetworkState),
    ) -> Result<(), HypervisorError> {
        if self.fails.contains(&self.calls.replace(self.calls.get() + 1)) {
            return Err(failed(HypervisorErrorKind::Other, "it fails"));
        }
        match self.all.borrow_mut().get_mut(name) {
            Some(network) => change(network),
            None => return Err(failed(HypervisorErrorKind::NoNetwork, "it is not there")),
        }
        Ok(())
    }

    /// The networks: name, whether active, whether autostarted, MTU.
    fn seen(&self) -> Vec<(String, bool, bool, Option<u32>)> {
        let all = self.all.borrow();
        let mtu = |network: &NetworkState| Network::read(&network.xml).unwrap().mtu;
        all.values().map(|n| (n.name.clone(), n.active, n.autostart, mtu(n))).collect()
    }
}

impl Networks for FakeNetworks {
    fn all_networks(&self) -> Result<Vec<NetworkState>, HypervisorError> {
        Ok(self.all.borrow().values().cloned().collect())
    }
    fn define_network(&self, xml: &str) -> Result<(), HypervisorError> {
        let mut network = Network::read(xml).unwrap();
        if self.lies {
            network.mtu = Some(1280);
        }
        let name = network.name.clone();
        let new = NetworkState {
            name: name.clone(),
            active: false,
            autostart: false,
            persistent: true,
            xml: network.xml(),
            live_xml: None,
        };
        self.all.borrow_mut().entry(name.clone()).or_insert(new);
        self.change(&name, |now| now.xml = network.xml())
    }
    fn undefine_network(&self, name: &str) -> Result<(), HypervisorError> {
        self.change(name, |now| assert!(!now.active, "undefined while it is up"))?;
        self.all.borrow_mut().remove(name);
        Ok(())
    }
    fn start_network(&self, name: &str) -> Result<(), HypervisorError> {
        self.change(name, |now| {
            assert!(!now.active, "started twice");
            (now.active, now.live_xml) = (true, Some(now.xml.clone()));
        })
    }
    fn stop_network(&self, name: &str) -> Result<(), HypervisorError> {
        self.change(name, |now| {
            assert!(now.active, "stopped twice");
            (now.active, now.live_xml) = (false, None);
        })
    }
    fn autostart_network(&self, name: &str, on: bool) -> Result<(), HypervisorError> {
        self.change(name, |now| now.autostart = on)
    }
    fn network_leases(&self, _: &str) -> Result<Vec<NetworkLease>, HypervisorError> {
        Ok(Vec::new())
    }
}

/// The definition of a network with an MTU.
fn xml(mtu: u32) -> String {
    Network { mtu: Some(mtu), ..Network::bare("n", Kind::Isolated) }.xml()
}

fn steps(steps: impl IntoIterator<Item = NetworkStep>) -> Vec<Step> {
    steps.into_iter().map(Step::from).collect()
}

fn n() -> String {
    "n".into()
}

fn make() -> Vec<Step> {
    steps([
        NetworkStep::Define { name: n(), xml: xml(9000) },
        NetworkStep::Autostart { name: n(), on: true },
        NetworkStep::Start { name: n() },
        NetworkStep::Check { name: n(), xml: xml(9000), active: true },
    ])
}

/// The steps that recreate it with another MTU.
fn change() -> Vec<Step> {
    steps([
        NetworkStep::Stop { name: n() },
        NetworkStep::Redefine { name: n(), xml: xml(1500), before: xml(9000) },
        NetworkStep::Start { name: n() },
        NetworkStep::Check { name: n(), xml: xml(1500), active: true },
    ])
}

fn delete() -> Vec<Step> {
    steps([
        NetworkStep::Autostart { name: n(), on: false },
        NetworkStep::Stop { name: n() },
        NetworkStep::Undefine { name: n(), xml: xml(9000) },
    ])
}

/// A hypervisor that has it, up, or not.
fn fake(has_it: bool, fails: Vec<usize>) -> Fake {
    let mut fake = Fake::default();
    if has_it {
        apply(&make(), &fake, &mut Watch::default(), None).unwrap();
    }
    fake.networks.calls.set(0);
    fake.networks.fails = fails;
    fake
}

#[test]
fn a_change_that_fails_at_any_step_leaves_it_as_it_was() {
    for (steps, has_it, calls) in [(make(), false, 3), (change(), true, 3), (delete(), true, 3)] {
        let fake_of = |fails| fake(has_it, fails);
        let before = fake_of(vec![]).networks.seen();
        for failing in 0..calls {
            let fake = fake_of(vec![failing]);
            let error = apply(&steps, &fake, &mut Watch::default(), None).unwrap_err();
            assert!(error.left().is_empty(), "{error}");
            assert_eq!(fake.networks.seen(), before, "{error} at call {failing}");
        }
        let fake = fake_of(vec![]);
        apply(&steps, &fake, &mut Watch::default(), None).unwrap();
        assert_ne!(fake.networks.seen(), before);
    }
}

#[test]
fn a_network_that_is_read_back_otherwise_is_undone() {
    let mut fake = fake(false, vec![]);
    fake.networks.lies = true;
    let error = apply(&make(), &fake, &mut Watch::default(), None).unwrap_err();
    let ApplyError::Failed { source, .. } = &error else { panic!("{error}") };
    let said = "network `n` is not what was planned: its MTU is 1280, planned was 9000";
    assert_eq!(source.to_string(), said);
    assert_eq!(fake.networks.seen(), []);
}

#[test]
fn a_change_that_is_killed_at_any_step_is_undone_or_finished() {
    let up = |mtu| vec![(n(), true, true, Some(mtu))];
    for (steps, verb, has_it, finished) in [
        (make(), "create", false, vec![]),
        (change(), "create", true, up(1500)),
        (delete(), "delete", true, vec![]),
    ] {
        for (done, also) in (0..steps.len()).flat_map(|done| [(done, false), (done, true)]) {
            let dir = tempfile::tempdir().unwrap();
            let fake = fake(has_it, vec![]);
            killed::killed(dir.path(), &fake, verb, &steps, done, also);
            let way = killed::recovered(dir.path(), &fake).way;
            let took_away = steps[..=done].iter().any(Step::takes_away);
            assert_eq!(way == Way::Finish, took_away, "{verb} at {done}");
            let expected = match (took_away, has_it) {
                (true, _) => finished.clone(),
                (false, true) => up(9000),
                (false, false) => vec![],
            };
            assert_eq!(fake.networks.seen(), expected, "{verb} at {done}");
        }
    }
}

#[test]
fn concurrent_changes_by_others_are_not_lost() {
    // Another network of the name; one that was edited; one that was started again.
    let refusal = |steps: &[Step], fake: &Fake| {
        let error = apply(steps, fake, &mut Watch::default(), None).unwrap_err();
        let ApplyError::Failed { source, .. } = error else { panic!("{error}") };
        source.to_string()
    };
    let there = fake(true, vec![]);
    assert!(refusal(&make(), &there).contains("has a network of this name"));
    there.networks.all.borrow_mut().get_mut("n").unwrap().xml = xml(4000);
    let said = "the definition of network `n` was changed by someone else in the meantime";
    assert_eq!(refusal(&change(), &there), said);
    assert_eq!(there.networks.seen(), [(n(), true, true, Some(4000))]);
    assert!(refusal(&delete()[2..], &there).contains("it was started again meanwhile"));
}
