# The two commands of the README are `make demo` and `make test`; both install what is missing by apt.

PREFIX  ?= /usr/local
DESTDIR ?=
CARGO   ?= cargo
# Not every shell expands the tilde of `make PREFIX=~/.local`.
PLACE    = $(abspath $(patsubst ~/%,$(HOME)/%,$(patsubst ~,$(HOME),$(PREFIX))))
BINDIR   = $(DESTDIR)$(PLACE)/bin
LINK     = $(BINDIR)/nvidia-vm
TARGET   = $(or $(CARGO_TARGET_DIR),target)
# What is installed is built as `dist`, with LTO: faster, and longer in the making.
PROFILE ?= release
GPUVM    = $(TARGET)/$(patsubst dev,debug,$(PROFILE))/gpuvm

.PHONY: build demo test test-nightly test-view test-export mutants test-vdgx lint lint-short lint-more bench install install-link uninstall packed deb rpm source clean

build:
	tests/setup build
	. src/packaging/settings && $(CARGO) build --profile $(PROFILE) --locked

# The main job on a recorded DGX-2, with real libvirt and without GPU or daemon; then this machine's own layout.
# Its program is the unoptimized one: three minutes less to build, and `make test` goes on with it.
demo: PROFILE = dev
demo:
	tests/setup demo
	$(CARGO) build --profile $(PROFILE) --locked
	tests/demo $(GPUVM)

# The tests. Those that need root run the whole test binary with sudo where the caller is not root. TESTS is more for cargo:
# TESTS="--test main fleet::" runs those of a module.
test:
	tests/setup test
	tests/with-root $(CARGO) test --locked --workspace --no-fail-fast $(TESTS)

# What `make test` samples, whole: every host and size (tests/law), the arrays of every level, the trees that kernels
# see, kills that differ little from others, the modes of bonds, the packages in a new Debian and their two builds, Slurm with
# kills, outages and random jobs, the restarts of a whole Linux, and what depends on libvirt and QEMU a second time beside
# libvirt 12 and QEMU 11 in a Debian 13 (the tests that `make test` shows as ignored). And the documentation without private
# items, which `make lint` leaves out.
test-nightly:
	tests/setup test
	tests/setup package
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps
	$(MAKE) lint-more
	GPUVM_LAW=all GPUVM_ARRAYS=all GPUVM_VIEW=all GPUVM_KILLS=all GPUVM_BOND_MODES=all GPUVM_OFFERS=all GPUVM_ANSIBLE=all \
	GPUVM_BOOTS=all GPUVM_TEST_LIMIT_S=5400 \
	tests/with-root sh -c 'status=0; $(CARGO) test --locked --workspace --no-fail-fast || status=$$?; \
	$(CARGO) test --locked --test main -- --ignored || status=$$?; exit $$status'

# Nightly: pages and pictures in a headless Chromium (four sizes, the console, requests, axe-core, html-validate, keyboard);
# metrics by promtool and a node exporter.
test-view:
	tests/setup view
	$(CARGO) build --locked
	tests/browser/run $(TARGET)/debug/gpuvm $(TARGET)/view-out
	tests/browser/metrics $(TARGET)/debug/gpuvm $(TARGET)/view-out/metrics

# Nightly: exports to KubeVirt and Nova, judged by their own types, validators and planner, which npm and pip fetch; the bench's
# model of that planner, too. Without a network it fails.
test-export:
	tests/setup export
	$(CARGO) build --locked
	mkdir -p $(TARGET)/export-out
	$(CARGO) run --locked --quiet --package gpuvm-bench --example nova_cases >$(TARGET)/export-out/nova-model.jsonl
	tests/export/run $(TARGET)/debug/gpuvm $(TARGET)/export-out

# A test of the tests, nightly: one in 12 of the mutants of .cargo/mutants.toml, each of which a test of core has to
# notice; MUTANTS=1/12 takes the next ones, MUTANTS=0/1 all. The missed ones stand in target/mutants/mutants.out/missed.txt.
MUTANTS ?= 0/12
mutants:
	@$(CARGO) mutants --version >/dev/null 2>&1 || { echo "mutants: cargo install cargo-mutants"; exit 1; }
	mkdir -p $(TARGET)/mutants
	CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=1 $(CARGO) mutants -p gpuvm-core --shard $(MUTANTS) --output $(TARGET)/mutants

# Passthrough by gpuvm on virtual hosts with real VFIO; needs root. What is kept of the runs lies in target/vdgx-out.
# All of it takes an optimized program: emulated, the unoptimized one needs half as much time again.
# VDGX_SET=short leaves out what takes longest, and takes the one that the tests have built (`cargo build` would build most
# of it anew, with fewer features of what all depend on); VDGX_SET=reboot is about reboots, VDGX_SET=abuse about others in
# the middle of a change, which the others leave out; VDGX_SET=doctor, iommufd, vgpu and p2p are parts of all.
test-vdgx:
	tests/setup test
	$(CARGO) $(if $(filter short,$(VDGX_SET)),test --locked --workspace --all-targets --no-run,build --locked --release)
	tests/vdgx/all $(TARGET)/$(if $(filter short,$(VDGX_SET)),debug,release)/gpuvm $(TARGET)/vdgx-out $(VDGX_SET)

# All lints.
lint: lint-short lint-more

# What each change passes; .ci/run has it of the build of the tests, and the rest in the nightly set.
lint-short:
	tests/setup build
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

lint-more:
	# Without hwloc, libvirt and schemas; no C library is linked then.
	$(CARGO) clippy --locked --workspace --no-default-features -- -D warnings
	! $(CARGO) tree --locked --workspace --no-default-features --edges normal,build --prefix none | grep -E '^(hwlocality|virt)'
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items
	if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --offline check licenses bans sources; \
	else echo "lint: cargo-deny is not installed; licences were not checked"; fi

# Speed against peers, as ratios of one run.
bench:
	tests/setup test
	tests/with-root $(CARGO) bench --locked

install: PROFILE = dist
install: build
	src/packaging/stage "$(PLACE)" plain install "$(GPUVM)" "$(DESTDIR)"
	$(MAKE) --no-print-directory install-link

# The name of the vendor's tool; a program of this name that is not ours stays.
install-link:
	@if [ "$$(readlink "$(LINK)")" != gpuvm ] && { [ -e "$(LINK)" ] || [ -L "$(LINK)" ]; }; then \
		echo "install: $(LINK) is another program and stays; \`ln -sf gpuvm $(LINK)\` replaces it"; \
	else install -d "$(BINDIR)" && ln -sf gpuvm "$(LINK)"; fi

uninstall:
	src/packaging/stage "$(PLACE)" plain uninstall "$(DESTDIR)"
	if [ "$$(readlink "$(LINK)")" = gpuvm ]; then rm -f "$(LINK)"; fi

# Packages for Debian and Fedora, and a source archive with all crates, below target/packages. Their program is built in a
# folder of its own, without the paths of this machine, so that two builds of a commit are equal. PROFILE=dist, for packages that
# are published, takes half as long again and makes a smaller, faster program.
PACKAGES = $(TARGET)/packages
PACKED   = $(TARGET)/package/$(patsubst dev,debug,$(PROFILE))/gpuvm

packed:
	tests/setup pack
	src/packaging/build $(TARGET)/package $(PROFILE)

deb: packed
	src/packaging/deb $(PACKED) $(PACKAGES)

rpm: packed
	src/packaging/rpm $(PACKED) $(PACKAGES)

source:
	src/packaging/source $(PACKAGES)

clean:
	$(CARGO) clean
