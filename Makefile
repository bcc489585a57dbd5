# rdma-netstack: "make help" lists the targets.

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
TIMEOUT     ?= 18m
BENCHTIME   ?= 1s
FUZZTIME    ?= 30s
BENCH       ?= .

# TESTFLAGS of make test: make check has vetted all, and nobody reads DWARF.
TESTFLAGS := -vet=off -ldflags=-w -shuffle=on -timeout $(TIMEOUT)

# LONGTIME is the limit of make test, whose longest packages take 11 minutes on two processors at
# rest and share them with all others. The virtual machines have VM_TIME within it.
LONGTIME ?= 30m
VM_TIME  ?= 16m

# LONGEST are the packages whose tests take longest. They come first, so that none of them runs
# alone at the end; the virtual machines come last.
LONGEST := ./cmd/rdma-netstack ./stack ./link/rdma ./dv ./tests/conformance/hoststack ./tests/e2e/addresses ./simnic
SERVICES    ?= web grpc quic webrtc dns ssh caddy leak anycast
ROUNDS      ?= 10

# The profile that go build lays the command out by makes everything build anew, and is no concern
# of tests.
export GOFLAGS := $(strip $(GOFLAGS) -pgo=off)

# Commit and version go into the binary where git answers for this directory.
BUILDVCS := $(shell git status >/dev/null 2>&1 && echo true || echo false)

.PHONY: build test test-unmodified test-unmodified-go test-vm test-vm-users test-vm-instructions test-vm-removals test-vm-upgrades test-vm-host test-host test-upgrade test-roads test-looks test-browser test-deploy release test-release test-arm64 test-pages test-services test-attacks test-suites test-newest-gvisor test-poison soak-tests sim sim-mutants check house deps demo bench bench-go bench-peers bench-scale bench-host instructions pgo fuzz fuzz-short help

build: ## build bin/rdma-netstack
	CGO_ENABLED=0 go build -pgo=auto -buildvcs=$(BUILDVCS) -trimpath -o bin/rdma-netstack ./cmd/rdma-netstack

test: deps check ## check, then every test with the race detector, in random order; SHORT=1: no long waits, no race detector
	@skips=$$(mktemp); $(if $(SHORT),race=-short; export CGO_ENABLED=0,race=$$(tests/race.sh)); \
	NEED_LOG=$$skips VM_TIME=$(VM_TIME) go test $$race $(TESTFLAGS) -timeout $(LONGTIME) -p $$(($$(getconf _NPROCESSORS_ONLN) * 2)) \
		$(LONGEST) $$(go list ./... | grep -vE '/tests(/vm)?$$') ./tests/vm; status=$$?; \
	$(if $(SHORT),,LOSSY_SEEDS=150 CGO_ENABLED=0 go test -count=1 $(TESTFLAGS) -run 'TestLossyWire|TestGoBack|TestWorlds|TestNoPath|TestRest|TestRecoveryAfter|TestReordering|TestPause|TestShortPath|TestThreshold|TestCubicFraction|^TestKilled$$|^TestSuccessor$$' ./link/rdma/internal/tcpfix ./tests/conformance/roads ./tests/conformance/upstream ./link/xdp || status=1; $(MAKE) --no-print-directory sim || status=1;) \
	for d in tests/bench/peers examples/grpc contrib/quic contrib/pion; do (cd $$d && CGO_ENABLED=0 go test $(TESTFLAGS) .) || status=1; done; \
	(cd tests/e2e/unmodified && NEED_LOG=$$skips CGO_ENABLED=0 go test -short $(TESTFLAGS) .) || status=1; \
	sort -u $$skips; rm -f $$skips; $(if $(SHORT),,tests/race.sh again;) exit $$status

test-vm: ## stock kernels with their own mlx5 driver on the model, in QEMU; KERNEL=6.12 for one
	VM=1 go test -count=1 -v -timeout 45m -run StockKernels ./tests/vm

test-vm-users: ## other users of the model under a stock kernel, in QEMU (DPDK, perftest, sockperf, ethtool under load, tcpdump, reloads, rdma-core's tests): 15 to 40 minutes. SUITE=sid for programs of sid, STARTS=36 for testpmd started under traffic
	@tests/deps.sh users
	USERS=1 go test -count=1 -v -timeout 45m -run '^TestUser' ./tests/vm

test-vm-instructions: ## instructions in a virtual machine that counts them: an echo and HTTP on the kernel and on rings; DNS on packet sockets and AF_XDP in zero copy: 10 minutes
	INSTRUCTIONS=1 go test -count=1 -v -timeout 1h -run '^TestInstructions$$' ./tests/vm

test-vm-removals: ## the device taken away and given back 900 times an hour, for REMOVALS (10m), under transfers and clients, in QEMU
	REMOVALS=$(or $(REMOVALS),10m) go test -count=1 -v -timeout 2h -run '^TestRemovals$$' ./tests/vm

test-vm-upgrades: ## UPGRADE_ROUNDS (100) times an upgrade of a web and a DNS server on the host's own address, and one with the server before killed, in one QEMU. KERNEL=7.3 for another than 7.2
	UPGRADE_ROUNDS=$(or $(UPGRADE_ROUNDS),100) go test -count=1 -v -timeout 3h -run '^TestHostUpgrades$$' ./tests/vm

test-vm-host: ## servers on the host's own address under three stock kernels, in QEMU: 10,000 connections from outside, 1,000 dials, 1,000 local, 1,000 of a container: 10 to 20 minutes a kernel. KERNEL=6.12 for one, HOST_CONNECTIONS=1000
	HOST_CONNECTIONS=$(or $(HOST_CONNECTIONS),10000) go test -count=1 -v -timeout 2h -run '^TestHostMode$$' ./tests/vm

test-host: ## servers on the host's own address: 10,000 connections from outside, 1,000 dials, 1,000 local, 1,000 of a container, on packet sockets and on rings; what sockets do, on both: 3 minutes
	HOST=1 go test -count=1 -v -timeout $(TIMEOUT) ./tests/e2e/hostmode
	HOST=1 go test -count=1 -v -timeout $(TIMEOUT) -run TestHost ./tests/conformance/hoststack

test-looks: ## ss -i, status stats and capture on a server with 10,000 connections at full load, against what clients and their kernel count, with the p99: 75 seconds. PAIRS=40 for more
	MANY=$(or $(MANY),10000) PAIRS=$(or $(PAIRS),15) CGO_ENABLED=0 go test -count=1 -v -timeout $(TIMEOUT) -run ManyConnections ./cmd/rdma-netstack

test-roads: ## Linux and ours on roads with delay, losses, late frames and queues, in turns: a table, an hour. ROADS="clean,1 % late" RTTS=20,80 ROUNDS=3 SECS=3 for some, TRAFFIC="4 down,IPv6 up,HTTP" for other than one flow down and up, ROADS=answers for answers
	ROADS='$(or $(ROADS),all)' CGO_ENABLED=0 go test -count=1 -v -timeout 3h -run 'TestTable$$' ./tests/conformance/roads

test-upgrade: ## 20 upgrades in a row of a web and a DNS server, under clients, and 20 with the server before killed, on each kind of link: 2 minutes
	RDMA_NETSTACK_UPGRADES=20 go test -count=1 -v -timeout $(TIMEOUT) -run '^TestUpgrade' ./cmd/rdma-netstack

test-browser: ## the status page in headless Chromium: 5 seconds, but Chromium's packages are 300 MB
	@tests/deps.sh browser
	go test -count=1 -v -timeout $(TIMEOUT) -run StatusPage ./tests/e2e/monitoring

test-deploy: ## the images of deploy/Dockerfile, and deploy/kubernetes built by kustomize and decoded strictly into the API's types: half a minute, 3 with cold caches
	@tests/deps.sh deploy
	go test -count=1 -v -timeout $(TIMEOUT) -run Image ./tests/e2e/deploy
	cd tests/e2e/kubernetes && CGO_ENABLED=0 go vet . && CGO_ENABLED=0 go test -count=1 -v -timeout $(TIMEOUT) .

release: ## build a tagged commit into dist: static binaries, .deb, bills of materials, checksums; docs/releasing.md
	deploy/release.sh

test-release: ## make release in a clone with a tag of its own, and go install from a proxy of its own: 3 minutes, 10 with cold caches
	RELEASE=1 CGO_ENABLED=0 go test -count=1 -v -timeout $(TIMEOUT) -run 'Release|GoInstall' ./tests/e2e/deploy

test-arm64: ## tests of the driver on an emulated arm64 processor under a stock kernel: 2 to 10 minutes
	ARM64=1 go test -count=1 -v -timeout 30m ./tests/vm/arm64

test-services: ## real services on the stack with the clients people have; SERVICES="web ssh" for some
	@tests/deps.sh services
	@skips=$$(mktemp); versions=$$(mktemp); status=0; for s in $(SERVICES); do \
	(cd tests/e2e/services/$$s && go vet . && NEED_LOG=$$skips SERVICES_LOG=$$versions go test -count=1 -timeout $(TIMEOUT) .) || status=1; done; \
	echo "versions:" $$(sort -u $$versions | tr '\n' ',' | sed 's/,$$//; s/,/, /g'); \
	sort -u $$skips; rm -f $$skips $$versions; exit $$status

test-attacks: ## a server under attack, and its clients: one table. 3 minutes; LONG=1: attacks of 60 s, or DURATION=20s
	@tests/deps.sh attacks
	cd tests/e2e/attack && ATTACKS=1 go test -count=1 -parallel 8 -timeout $(if $(LONG),90m,20m) -for $(or $(DURATION),$(if $(LONG),60s,5s))

test-unmodified: ## untouched programs of 21 modules by rdma-netstack build, with their clients, on the host's address, a MAC of their own and the software ConnectX, with and without loss; programs that are refused; ways of build; deploy/unmodified; what sockets do, through package net; the releases of Go: 45 minutes, 2 hours with cold caches or other load
	cd tests/e2e/unmodified && CGO_ENABLED=0 go vet ./... && CGO_ENABLED=0 go test -count=1 -v -timeout 150m .
	CGO_ENABLED=0 go run ./cmd/rdma-netstack test --source . ./tests/conformance/hoststack -- -tags rdma_overlay -count=1 -v -vet=off -run Overlaid
	GO_RELEASES="$$(cd tests/e2e/unmodified && ./releases.sh)" CGO_ENABLED=0 go test -count=1 -v -timeout $(TIMEOUT) -run KnownReleases ./internal/overlay

test-unmodified-go: ## Go's own tests of net and net/http with package net as rdma-netstack build makes it, without hooks and with each socket through the seam: 5 minutes
	cd tests/e2e/unmodified && GO_SUITES=1 CGO_ENABLED=0 go test -count=1 -v -timeout $(TIMEOUT) -run GoSuites .

test-newest-gvisor: ## build and short tests against the newest gVisor there is, or GVISOR=VERSION, with a copy of go.mod: at most 15 minutes
	@tests/newest-gvisor.sh

test-suites: ## Go's own tests of net and net/http, quic-go's and pion/transport's on slices, beside the host's results; SHORT=1: those of go test -short, and of libraries some; OF="go quic pion" for some
	go run ./tests/conformance/suites $(if $(SHORT),-short) $(if $(OF),-of '$(OF)')

test-pages: ## tests of driver and model as on kernels with pages of 16 and 64 KiB, by an overlay of the toolchain: 5 minutes
	@tests/pages.sh

test-poison: ## links, stack and 1,500 worlds of make sim sending without copies, buffers unmapped once they are released: 10 minutes
	CGO_ENABLED=0 go test -tags chunkpoison ./link/... ./stack
	CGO_ENABLED=0 go run -tags chunkpoison ./tests/sim/run -seeds 1500

soak-tests: ## SOAK_PACKAGES (all) SOAK_COUNT (20) times with -cpu 1,2, beside four busy loops: hours for all of them
	@tests/soak.sh $(or $(SOAK_COUNT),20) $(or $(SOAK_PACKAGES),./...)

sim: ## hosts on a bad network, on virtual time: 2,000 worlds, each from its number; SEEDS=100000 for more, TWICE=1: each twice
	CGO_ENABLED=0 go run ./tests/sim/run -seeds $(or $(SEEDS),2000) $(if $(TWICE),-twice)

sim-mutants: ## plant faults into the layers, one after the other, and have make sim find each, a table
	MUTANTS=1 CGO_ENABLED=0 go test -count=1 -v -timeout 60m -run 'TestMutants$$' ./tests/sim

check: ## gofmt, vet for amd64, arm64 and macOS, staticcheck, import map and other rules of the tree
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt: $$unformatted"; exit 1; }
	CGO_ENABLED=0 GOARCH=amd64 go vet ./...
	CGO_ENABLED=0 GOARCH=arm64 go vet ./...
	CGO_ENABLED=0 GOOS=darwin go vet ./...
	cd tests/bench/peers && CGO_ENABLED=0 go vet ./...
	cd examples/grpc && CGO_ENABLED=0 go vet ./...
	for d in contrib/quic contrib/pion; do (cd $$d && CGO_ENABLED=0 go vet ./... && CGO_ENABLED=0 GOOS=darwin go vet ./...) || exit 1; done
	cd tests/e2e/unmodified && CGO_ENABLED=0 go vet ./...
	CGO_ENABLED=0 go run $(STATICCHECK) ./...
	CGO_ENABLED=0 go test -vet=off ./tests

house: ## count what makes the tree hard to hold in one head: objects, packages, names, comments, options; SINCE=COMMIT for its subjects
	CGO_ENABLED=0 go run ./tests/lib/house/run $(SINCE)

deps: ## install what the tests use, by apt if root; else say what is missing
	@tests/deps.sh

demo: build ## a server on a slice of a software ConnectX, with clients, on this machine
	bin/rdma-netstack demo

bench: ## the driver alone on rings filled ahead: ns per packet; then TCP across the software NIC, offloads on and off
	CGO_ENABLED=0 go run ./tests/bench/driver -rounds $(ROUNDS)

bench-go: ## every benchmark whose name matches BENCH, for BENCHTIME each
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) ./...

instructions: ## instructions of one operation: BENCH='BenchmarkCoalescer$$/held' PKG=./link/rdma/internal/delack, BEFORE=COMMIT to compare; needs valgrind
	tests/instructions.sh $(PKG) '$(BENCH)' $(BEFORE)

pgo: ## make cmd/rdma-netstack/default.pgo anew, by which go build lays the command out: 3 minutes
	tests/pgo.sh

bench-peers: ## measure against the kernel and gVisor's own links, 20 minutes; into docs/perf-log/peers.md; QUICK=1: five, printed only
	@tests/deps.sh perf
	cd tests/bench/peers && go run . $(if $(QUICK),-quick,-page ../../../docs/perf-log/peers.md)

bench-scale: ## what an operation costs with more cores, queues and sockets, in counts: 40 s; LONG=1: 64 to 50,000 connections, an hour
	CGO_ENABLED=0 go run ./tests/bench/scale $(if $(LONG),-long)

bench-host: ## HTTP and DNS on the host's own address against an address and a MAC of its own, in turns: 2 minutes
	RATES=1 CGO_ENABLED=0 go test -count=1 -v -timeout $(TIMEOUT) -run Rates ./tests/e2e/hostmode

fuzz: ## every fuzz target, for FUZZTIME each
	@tests/fuzz.sh $(FUZZTIME)

fuzz-short: ## every fuzz target for 2 s, those that read a stranger's bytes for 8 s: 4 minutes; FUZZSEED=1 as in CI
	@FUZZSEED=$(FUZZSEED) tests/fuzz.sh 2s 8s

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 10
