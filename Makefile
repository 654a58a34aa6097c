# The two commands of the README are `make demo` and `make test`; both install what is missing by apt.

PREFIX  ?= /usr/local
DESTDIR ?=
CARGO   ?= cargo
BINDIR   = $(DESTDIR)$(PREFIX)/bin
LINK     = $(BINDIR)/nvidia-vm
SHARE    = $(DESTDIR)$(PREFIX)/share
TARGET   = $(or $(CARGO_TARGET_DIR),target)
# What is installed is built as `dist`, with LTO: faster, and longer in the making.
PROFILE ?= release
GPUVM    = $(TARGET)/$(patsubst dev,debug,$(PROFILE))/gpuvm

.PHONY: build demo test test-nightly mutants test-vdgx lint bench install install-link uninstall clean

build:
	tests/setup build
	$(CARGO) build --profile $(PROFILE) --locked

# The main job on a recorded DGX-2, with real libvirt and without GPU or daemon; then this machine's own layout.
# Its program is the unoptimized one: three minutes less to build, and `make test` goes on with it.
demo: PROFILE = dev
demo:
	tests/setup demo
	$(CARGO) build --profile $(PROFILE) --locked
	tests/demo $(GPUVM)

# The tests. Those that need root run the whole test binary with sudo where the caller is not root.
test:
	tests/setup test
	tests/with-root $(CARGO) test --locked --workspace --no-fail-fast

# What `make test` samples, whole: every host and size (tests/law), the arrays of every level, the trees that kernels
# see, kills that differ little from others, the modes of bonds. And the documentation without private items, which
# `make lint` leaves out.
test-nightly:
	tests/setup test
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps
	GPUVM_LAW=all GPUVM_ARRAYS=all GPUVM_VIEW=all GPUVM_KILLS=all GPUVM_BOND_MODES=all GPUVM_TEST_LIMIT_S=3600 \
	tests/with-root $(CARGO) test --locked --workspace --no-fail-fast

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
# the middle of a change, which the others leave out.
test-vdgx:
	tests/setup test
	$(CARGO) $(if $(filter short,$(VDGX_SET)),test --locked --workspace --no-run,build --locked --release)
	tests/vdgx/all $(TARGET)/$(if $(filter short,$(VDGX_SET)),debug,release)/gpuvm $(TARGET)/vdgx-out $(VDGX_SET)

# What .ci/run checks besides the tests.
lint:
	tests/setup build
	$(CARGO) fmt --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
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
	install -Dm755 $(GPUVM) $(BINDIR)/gpuvm
	$(MAKE) --no-print-directory install-link
	install -d $(SHARE)/man/man1 $(SHARE)/man/man7 $(SHARE)/gpuvm/templates $(SHARE)/gpuvm/topologies $(SHARE)/gpuvm/schemas
	install -m644 man/*.1 $(SHARE)/man/man1/
	install -m644 man/*.7 $(SHARE)/man/man7/
	install -m644 templates/*.xml $(SHARE)/gpuvm/templates/
	install -m644 topologies/*.json $(SHARE)/gpuvm/topologies/
	install -m644 src/cli/schemas/*.json $(SHARE)/gpuvm/schemas/
	install -Dm644 src/host/apply/tmpfiles.conf $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/gpuvm.conf
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions $(SHARE)/fish/vendor_completions.d
	$(GPUVM) completions bash >$(SHARE)/bash-completion/completions/gpuvm
	$(GPUVM) completions zsh >$(SHARE)/zsh/site-functions/_gpuvm
	$(GPUVM) completions fish >$(SHARE)/fish/vendor_completions.d/gpuvm.fish

# The name of the vendor's tool; a program of this name that is not ours stays.
install-link:
	@if [ "$$(readlink $(LINK))" != gpuvm ] && { [ -e $(LINK) ] || [ -L $(LINK) ]; }; then \
		echo "install: $(LINK) is another program and stays; \`ln -sf gpuvm $(LINK)\` replaces it"; \
	else install -d $(BINDIR) && ln -sf gpuvm $(LINK); fi

uninstall:
	if [ "$$(readlink $(LINK))" = gpuvm ]; then rm -f $(LINK); fi
	rm -f $(BINDIR)/gpuvm $(SHARE)/man/man1/gpuvm.1 $(SHARE)/man/man1/gpuvm-*.1
	rm -f $(SHARE)/man/man7/gpuvm-*.7
	rm -f $(SHARE)/bash-completion/completions/gpuvm $(SHARE)/zsh/site-functions/_gpuvm
	rm -f $(SHARE)/fish/vendor_completions.d/gpuvm.fish
	rm -rf $(SHARE)/gpuvm $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/gpuvm.conf

clean:
	$(CARGO) clean
