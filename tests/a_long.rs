//! The longest tests. Tests begin in the order of their names, so these come first, and the others
//! run beside them; where they began in their turn, the end of the run would wait for them alone.

use crate::libvirt::{boot, offers, traffic};

#[test]
fn an_image_becomes_a_guest_with_a_login_and_deletion_leaves_nothing() {
    boot::from_image_to_deletion();
}

#[test]
fn bonds_carry_traffic_and_limits_hold() {
    traffic::bonds_and_limits(module_path!(), "bonds_carry_traffic_and_limits_hold");
}

#[test]
fn each_command_that_is_offered_in_any_state_leads_on() {
    offers::in_each_state();
}
