//! One edit of each kind about virtual functions of network cards, and its result in `hand.xml`.

use super::examples::at;
use crate::domain::edit::DomainEdit;
use crate::domain::nic_request::NicSettings;
use crate::domain::placed::{HostdevSeat, NicSeat, VfNic};

/// The edits, each with its diff.
pub fn examples() -> Vec<(DomainEdit, &'static str)> {
    vec![
        (
            DomainEdit::SetInterfaces {
                nics: vec![NicSeat {
                    nth: 1,
                    network: Some("pool".into()),
                    mac: Some("52:54:00:00:00:02".into()),
                    queues: None,
                    vhost: true,
                    is_vf: true,
                    settings: NicSettings::default(),
                    address: Some(at(9)),
                }],
                dropped: vec![],
            },
            r#"
+    <interface type='network'>
+      <source network='pool'/>
+      <mac address='52:54:00:00:00:02'/>
+      <address type='pci' domain='0x0000' bus='0x09' slot='0x00' function='0x0'/>
+    </interface>"#,
        ),
        (
            DomainEdit::SetHostdevs {
                hostdevs: vec![HostdevSeat {
                    bdf: "0000:3b:00.2".parse().unwrap(),
                    alias: "ua-vf0".into(),
                    managed: true,
                    kept: None,
                    iommufd: None,
                    nic: Some(VfNic { mac: "52:54:00:00:00:03".into(), vlan: Some(5) }),
                    cells: None,
                    address: at(7),
                }],
            },
            r"
-    <hostdev mode='subsystem' type='pci'>
-      <source><address domain='0' bus='0x1' slot='0' function='0'/></source>
-      <alias name='ua-gpu0'/>
-    </hostdev>
+    <interface type='hostdev' managed='yes'>
+      <mac address='52:54:00:00:00:03'/>
+      <source>
+        <address domain='0x0000' bus='0x3b' slot='0x00' function='0x2' type='pci'/>
+      </source>
+      <vlan>
+        <tag id='5'/>
+      </vlan>
+      <alias name='ua-vf0'/>
+      <address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x0'/>
+    </interface>",
        ),
    ]
}
