#!/bin/bash
# gpuvm host doctor on a real kernel. `off`: booted with intel_iommu=off, which it says, and with what bind refuses; beside it
# stands what virt-host-validate says of the same. Else with the IOMMU on: no error, also of a GPU that vfio-pci has put into D3.
. /usr/lib/vdgx/env
mapfile -t gpu < <(bdfs 0302 10de)
doctor() { gpuvm host doctor --json >/tmp/doctor.json 2>/tmp/doctor.err; echo $?; }
rules() { jq -r ".findings[] | select(.severity == \"$1\").rule" /tmp/doctor.json | sort -u | paste -sd' '; }
if [[ ${1:-} == off ]]; then
  equal "ends with 3" 3 "$(doctor)"
  equal "the error" iommu-off "$(rules error)"
  jq -r '.findings[0].message, .findings[0].fix[]' /tmp/doctor.json >/tmp/said
  has "it says why" /tmp/said 'command line has `intel_iommu=off`'
  gpuvm device bind "${gpu[0]}" --yes >/tmp/bind 2>&1
  equal "bind is refused" 1 $?
  has "by the same rule" /tmp/bind '(iommu-off)'
  equal "and nothing is bound" - "$(driver_of "${gpu[0]}")"
  if command -v virt-host-validate >/dev/null; then
    virt-host-validate qemu >/tmp/validate 2>&1
    has "virt-host-validate sees it, too" /tmp/validate 'IOMMU.*\(WARN\|FAIL\)'
  else
    say "virt-host-validate is not in this image"
  fi
else
  equal "ends with 0" 0 "$(doctor)"
  equal "no error" "" "$(rules error)"
  check "bind" gpuvm device bind "${gpu[0]}" --yes
  say "power state of a bound GPU: $(cat "$pci/${gpu[0]}/power_state"), of one without a driver: $(cat "$pci/${gpu[1]}/power_state")"
  equal "ends with 0 with a GPU on vfio-pci" 0 "$(doctor)"
  equal "no error with a GPU on vfio-pci" "" "$(rules error)"
  jq -r '.not_checked[]' /tmp/doctor.json
  gpuvm device release "${gpu[0]}" || fail release
fi
finish
