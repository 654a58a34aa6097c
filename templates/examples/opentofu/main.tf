# Where a guest would go on a host of gpuvm, as a data source of OpenTofu and of Terraform: `gpuvm plan`, which changes
# nothing. What it answers can be written to a file, and `gpuvm create --plan FILE` makes the guest in the very place.

terraform {
  required_providers {
    external = {
      source  = "hashicorp/external"
      version = "~> 2.3"
    }
  }
}

variable "host" {
  description = "A recorded host, from `gpuvm host capture FILE`; empty: this machine"
  type        = string
  default     = ""
}

variable "gpus" {
  description = "GPUs of the guest"
  type        = number
  default     = 2
}

data "external" "place" {
  program = ["python3", "${path.module}/place.py"]

  # Options of `gpuvm plan` by their names, as text.
  query = {
    name = "train-a"
    host = var.host
    gpus = tostring(var.gpus)
  }
}

output "devices" {
  description = "PCI addresses of what is passed through"
  value       = split(",", data.external.place.result.devices)
}

output "vcpus" {
  value = tonumber(data.external.place.result.vcpus)
}

output "memory_gib" {
  value = tonumber(data.external.place.result.memory_kib) / 1048576
}

output "plan" {
  description = "For `gpuvm create --plan FILE`"
  value       = data.external.place.result.plan
}
