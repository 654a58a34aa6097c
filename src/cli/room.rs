//! Offers `make-room` where a guest has no place, and moves of others would make one.

use super::context::Context;
use super::options::words;
use crate::domain::guest::VirtType;
use crate::request::{GpuWish, Request};
use gpuvm_core::guest;
use gpuvm_core::placement::RoomOffer;
use gpuvm_ops::capacity::Fits;
use gpuvm_ops::error::{Error, NoPlace};
use gpuvm_ops::guest::{GuestRequest, NameRequest};
use gpuvm_ops::make_room::{RoomRequest, offer};
use gpuvm_ops::taken::Taken;

/// The request for room for a guest.
pub fn wanted(request: Request, accept_shared_fabric: bool) -> RoomRequest {
    let shared = if accept_shared_fabric { " --accept-shared-fabric" } else { "" };
    let options = words(guest::options(&request)) + shared;
    let guest = GuestRequest {
        request,
        name: NameRequest::Usual,
        template: None,
        virt: VirtType::Kvm,
        networks: Vec::new(),
        taken: Taken::default(),
        place: None,
    };
    RoomRequest {
        guest,
        options,
        max_stops: None,
        max_moves: None,
        allow_stop: Vec::new(),
        wait_s: 0,
        accept_shared_fabric,
    }
}

/// The moves that make room for a guest; `None` if no guest may be moved, or that does not help.
fn offered(request: &Request, cx: &Context<'_>) -> Option<RoomOffer> {
    offer(cx, &wanted(request.clone(), false))
}

/// Adds the moves that would make room to the size that does not fit.
pub fn of_capacity(fits: &mut Fits, like: &Request, taken: &Taken, cx: &Context<'_>) {
    let next = fits.capacity.next.as_mut().filter(|next| next.advice.is_some());
    if let Some(next) = next.filter(|_| *taken == Taken::default()) {
        let request = Request { gpus: GpuWish::Count(next.gpus), ..like.clone() };
        next.room = offered(&request, cx);
    }
}

/// Adds the moves that would make room to the error of a guest without a place.
pub fn of_error(error: anyhow::Error, taken: &Taken, cx: &Context<'_>) -> anyhow::Error {
    match error.downcast::<Error>() {
        Ok(Error::NoPlace(no)) if *taken == Taken::default() => {
            let room = offered(&no.request, cx).map(Box::new);
            Error::NoPlace(NoPlace { room, ..no }).into()
        }
        Ok(other) => other.into(),
        Err(error) => error,
    }
}
