//! Requests and names accepted and refused.

use super::*;

#[test]
fn refuses_names_that_hurt_somewhere() {
    let long = "x".repeat(300);
    let bad = [
        "",
        "a/b",
        "..",
        ".hidden",
        "-rf",
        "a b",
        "a'b",
        "a\"b",
        "a<b",
        "a\nb",
        "a\u{0}b",
        "ä",
        "a$b",
        "a:b",
        long.as_str(),
    ];
    for name in bad {
        assert!(DomainName::new(name).is_err(), "{name:?} was accepted");
    }
}

#[test]
fn takes_the_replaced_tools_names() {
    for name in ["testme-8g8-15", "dgx2vm-labThu1726-8g0-7", "2gpu-vm-2g0-1", "_x", "a.b+c"] {
        assert_eq!(DomainName::new(name).unwrap().as_str(), name);
    }
}

#[test]
fn refuses_requests_that_cannot_be_meant() {
    let base = Request::for_gpus(1);
    assert!(base.check().is_ok());
    assert_eq!(Request { vcpus: Some(0), ..base.clone() }.check(), Err(RequestError::NoVcpus));
    assert_eq!(Request { threads: Some(0), ..base.clone() }.check(), Err(RequestError::NoThreads));
    let memory = MemSize::from_kib(512);
    assert!(Request { memory_kib: Some(memory), ..base.clone() }.check().is_err());
    let bdf: Bdf = "34:00.0".parse().unwrap();
    let gpus = GpuWish::Exact(vec![bdf, bdf]);
    assert_eq!(Request { gpus, ..base }.check(), Err(RequestError::DeviceTwice { bdf }));
}
