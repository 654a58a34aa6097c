//! Asks this machine's NVML in a child process with a deadline. Failures become notes: no problem
//! with NVIDIA's software can stop discovery.

use super::answer::{HealthAnswer, NvmlAnswer};
use super::ffi;
use crate::child::Question;
use gpuvm_core::bdf::Bdf;
use std::time::Duration;

/// The deadline of NVML: without persistence mode the driver initializes each GPU, which takes one
/// or two seconds each.
const NVML_LIMIT: Duration = Duration::from_secs(20);

/// Asks NVML for module ids, and for NVLinks, of GPUs on the driver `nvidia`.
pub fn begin(modules: Vec<Bdf>, links: Vec<Bdf>) -> Question {
    Question::ask(NVML_LIMIT, move || ffi::gpus(&modules, &links))
}

/// Asks NVML for the health of GPUs on the driver `nvidia`, and for the GPU instances behind these
/// vGPU types of each.
pub fn begin_health(gpus: Vec<(Bdf, Vec<u32>)>) -> Question {
    Question::ask(NVML_LIMIT, move || ffi::health(&gpus))
}

/// NVML's answer about health.
pub fn health_answer(question: Question) -> Result<HealthAnswer, String> {
    let answer: Result<HealthAnswer, String> =
        question.answer().map_err(|reason| format!("its library {reason}"))?;
    answer
}

/// NVML's answer.
pub fn answer(question: Question) -> Result<NvmlAnswer, String> {
    let answer: Result<NvmlAnswer, String> =
        question.answer().map_err(|reason| format!("its library {reason}"))?;
    answer
}
