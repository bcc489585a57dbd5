// Package tests keeps the rules of the source tree: who may import whom, where
// unsafe may be, what a file looks like. It also is the home of tests that need
// more than one package or more than one machine:
//
//	lib          what tests share: needs, links in memory, meters, the figures of the tree
//	conformance  what sockets and TCP do, beside Linux and package net
//	e2e          whole servers: services, attacks, the host's address, deployment, monitoring
//	sim          worlds on virtual time
//	vm           stock kernels and their drivers on the model
//	bench        measurements: the driver, other links and the kernel, cores and connections
package tests

import (
	"fmt"
	"go/ast"
	"path"
	"strconv"
	"strings"
)

const (
	module  = "github.com/rdma-netstack/rdma-netstack/"
	gvisor  = "gvisor.dev/gvisor/"
	gvStack = gvisor + "pkg/tcpip/stack"
	xsys    = "golang.org/x/sys"
	xnet    = "golang.org/x/net"
	netlink = "github.com/vishvananda/netlink"
	dns     = "github.com/miekg/dns"
	dhcp    = "github.com/insomniacslk/dhcp/"
	ebpf    = "github.com/cilium/ebpf"
	pprof   = "github.com/google/pprof"
	spf13   = "github.com/spf13/"
)

// layer is what a package may import, besides the standard library.
type layer struct {
	module []string            // packages of this module
	others []string            // prefixes of other modules' packages
	only   map[string][]string // prefix: the files (patterns) it may be imported in
	tests  []string            // either kind, in test files only
}

// layers is the import map. A package that is not here may not exist. A name
// that ends in /... covers the packages below it too.
//
// Three of its rules are the design. dv and simnic never name each other:
// driver and model share numbers, and each is written from the manual, so that
// one misunderstanding cannot cancel itself out. gVisor is in link/rdma and
// stack only: rings are useful without a TCP stack. The apps are ordinary Go
// servers, which their imports show.
var layers = map[string]layer{
	"clock":             {},
	"clock/clocktest":   {module: []string{"clock"}},
	"internal/random":   {},
	"internal/pacing":   {},
	"internal/memlimit": {},
	"internal/netclock": {module: []string{"clock"}, others: []string{gvisor}},

	// what the kernel tells unasked
	"internal/netlink": {others: []string{xsys}},
	// how the host's network is configured
	"internal/hostnet": {module: []string{"internal/netlink"}, others: []string{xsys, netlink},
		tests: []string{"cmd/rdma-netstack/lab"}},

	// for all of a process; x/net: the assembler of filters
	"privileges": {others: []string{xsys, xnet}, tests: []string{"tests/lib/need"}},

	"internal/bpf": {others: []string{xsys},
		only: map[string][]string{xsys: {"*_linux.go", "*_unsafe.go"}}},
	"internal/mmio":      {others: []string{xsys}},
	"dv/internal/netdev": {others: []string{xsys, netlink}},
	"dv/mlx5":            {},
	"dv/uverbs": {module: []string{"internal/mmio", "clock"}, others: []string{xsys},
		tests: []string{"simnic/..."}},
	"dv": {
		module: []string{"dv/uverbs", "dv/mlx5", "internal/mmio", "dv/internal/netdev", "clock",
			"internal/random"},
		others: []string{xsys},
		tests:  []string{"simnic/..."},
	},
	"simnic": {
		module: []string{"simnic/wire", "simnic/frame", "dv/mlx5", "internal/mmio",
			"internal/pacing", "clock"},
		tests: []string{"simnic/kernel", "tests/lib/simtest"},
	},
	"simnic/wire": {
		module: []string{"simnic/frame", "internal/mmio", "clock"},
		others: []string{xsys},
		only:   map[string][]string{xsys: {"*_linux.go"}},
		tests:  []string{"tests/lib/simtest", netlink},
	},
	"simnic/kernel": {
		module: []string{"simnic", "simnic/frame", "dv/uverbs",
			"dv/mlx5", "internal/mmio"},
		others: []string{xsys},
		only:   map[string][]string{xsys: {"*_linux.go"}},
		tests:  []string{"simnic/wire", "tests/lib/simtest"},
	},
	"tests/lib/simtest": {}, // what the tests of the packages below share
	"simnic/frame": {module: []string{"dv/mlx5"},
		tests: []string{"tests/lib/simtest"}},
	"tests/vm/pcie": {
		module: []string{"simnic", "dv/mlx5", "internal/mmio"}, others: []string{xsys},
		tests: []string{"simnic/frame"},
	},
	// frames by packet sockets; knows no RDMA
	"link/packet": {module: []string{"internal/random", "internal/netlink", "clock"},
		others: []string{xsys, netlink},
		tests:  []string{netlink, "cmd/rdma-netstack/lab", "tests/lib/eth"}},
	// which packets of a link go further
	"link/filter": {module: []string{"clock"}, tests: []string{"cmd/rdma-netstack/lab"}},
	// frames by AF_XDP sockets, and by packet sockets beside them
	"link/xdp": {module: []string{"link/packet", "internal/bpf", "internal/mmio",
		"internal/netlink", "clock"},
		others: []string{xsys, netlink},
		only:   map[string][]string{xsys: {"*_linux.go", "*_unsafe.go"}, netlink: {"*_linux.go"}},
		tests:  []string{netlink, "cmd/rdma-netstack/lab", "privileges", "tests/lib/eth"}},
	// pcapng files of the frames of a link; x/net: programs of tcpdump's
	"link/capture": {module: []string{"clock"}, others: []string{xnet}},
	"link/rdma": {
		module: []string{"dv", "link/capture", "link/filter", "link/packet",
			"link/rdma/internal/delack", "link/rdma/internal/tcpfix",
			"link/rdma/internal/hdr", "link/rdma/internal/chunkmem", "clock", "internal/random",
			"internal/netclock"},
		others: []string{gvisor},
		tests: []string{"simnic/...", "dv/uverbs", "link/rdma/internal/hdrtest",
			"tests/lib/tcpframe", netlink, "cmd/rdma-netstack/lab"},
	},
	// where netstack's large buffers lie
	"link/rdma/internal/chunkmem": {module: []string{"internal/mmio"},
		others: []string{gvisor, xsys}, only: map[string][]string{xsys: {"poison_on.go"}}},
	// what an endpoint works on while its device is away
	"link/failover": {
		module: []string{"link/rdma", "internal/netlink", "clock"}, others: []string{xsys},
		only: map[string][]string{xsys: {"*_linux.go"}},
	},
	// opens rings, those of bonds, or sockets; no gVisor
	"link/uplink": {module: []string{"dv", "link/rdma", "link/packet", "link/xdp", "link/failover",
		"internal/hostnet", "clock"}, others: []string{xsys}},
	"link/rdma/internal/delack": {
		module: []string{"link/rdma/internal/hdr", "clock", "internal/random"},
		others: []string{gvisor},
		tests:  []string{"link/rdma/internal/hdrtest", "tests/lib/tcpframe"},
	},
	"link/rdma/internal/tcpfix": {
		module: []string{"link/rdma/internal/hdr", "internal/random"}, others: []string{gvisor},
		tests: []string{"link/rdma/internal/hdrtest", "tests/lib/tcpframe"},
	},
	"link/rdma/internal/hdr": {module: []string{"internal/random"}, others: []string{gvisor},
		tests: []string{"link/rdma/internal/hdrtest", "tests/lib/tcpframe"}},
	"link/rdma/internal/hdrtest": {module: []string{"link/rdma/internal/hdr"}},
	"stack": {
		// x/net: the type of a batch
		module: []string{"link/rdma", "link/capture", "link/filter", "link/packet",
			"link/failover", "link/uplink", "link/xdp",
			"dv", "stack/internal/addrconf", "stack/internal/dhcp", "stack/internal/env",
			"stack/internal/handover", "stack/internal/hostmode", "stack/internal/neighbours",
			"stack/internal/resolver",
			"internal/hostnet",
			"clock", "internal/random", "internal/netclock",
			"internal/memlimit", "internal/pacing", "stack/packets"},
		others: []string{gvisor, xnet, xsys},
		tests: []string{"simnic/...", "dv/uverbs", "apps/httpd", "apps/dnsd",
			"cmd/rdma-netstack/lab", "tests/lib/card", "tests/lib/netpair", "stack/stacktest",
			netlink, dns, dhcp},
	},
	"stack/metrics": {module: []string{"stack", "stack/internal/fields", "dv", "link/packet"},
		tests: []string{"stack/stacktest"}},
	"stack/admin": {
		module: []string{"stack", "stack/metrics", "stack/internal/fields", "dv", "link/capture",
			"link/packet"},
		tests: []string{"stack/stacktest"},
	},
	// what is wrong with a stack: judges what admin tells
	"stack/diagnose": {module: []string{"stack", "stack/admin"},
		tests: []string{"stack/stacktest"}},
	"stack/internal/fields": {},
	"stack/internal/env": {module: []string{"clock", "internal/random"},
		others: []string{gvisor}},
	// what a stack is known by on its link
	"stack/internal/addrconf": {module: []string{"stack/internal/env", "stack/internal/dhcp",
		"stack/internal/addrlock", "dv", "link/packet", "clock"}, others: []string{gvisor}},
	// asks for addresses; knows no socket of ours
	"stack/internal/dhcp": {module: []string{"stack/internal/env", "clock"},
		others: []string{gvisor, dhcp}},
	// two processes, or one and Linux, with the same addresses
	"stack/internal/handover": {
		module: []string{"stack/internal/env", "link/rdma", "dv"}, others: []string{gvisor, xsys},
	},
	"stack/internal/neighbours": {module: []string{"stack/internal/env", "clock"},
		others: []string{gvisor}},
	// the host's own addresses, shared with Linux; knows neither stack nor addrconf
	"stack/internal/hostmode": {
		module: []string{"stack/internal/env", "internal/backing",
			"stack/internal/handover", "internal/hostnet", "link/packet", "dv", "clock"},
		others: []string{gvisor, xsys},
		tests:  []string{netlink, "cmd/rdma-netstack/lab"},
	},
	// ports of the kernel's sockets; knows no TCP/IP of ours
	"internal/backing": {module: []string{"internal/bpf", "internal/mmio", "clock"},
		others: []string{xsys},
		tests:  []string{netlink, "cmd/rdma-netstack/lab", "privileges", "tests/lib/eth"}},
	"stack/internal/addrlock": {others: []string{xsys},
		only: map[string][]string{xsys: {"*_linux.go"}}},
	// names of hosts over connections that others dial; x/net: the format of DNS messages
	"stack/internal/resolver": {module: []string{"clock"},
		others: []string{xnet + "/dns/dnsmessage"},
		tests:  []string{"clock/clocktest", "tests/lib/need"}},
	"stack/packets":   {}, // types that servers share with the stack
	"stack/stacktest": {module: []string{"stack"}, others: []string{gvisor}},
	"apps/httpd":      {module: []string{"clock", "internal/memlimit"}},
	// x/net: the type of a batch of datagrams
	"apps/dnsd": {module: []string{"clock", "internal/random", "stack/packets"},
		others: []string{dns, xnet}},
	"apps/iperf3d": {module: []string{"clock"}},
	"cmd/rdma-netstack/...": {
		module: []string{"stack", "stack/admin", "stack/diagnose", "dv", "link/capture",
			"link/packet", "link/xdp",
			"privileges", "simnic/...",
			"apps/httpd", "apps/dnsd", "apps/iperf3d", "cmd/rdma-netstack/...",
			"internal/probe", "internal/doctor/...", "internal/firewall", "clock",
			"internal/overlay", "internal/running"},
		others: []string{netlink, xsys, dns, spf13},
		tests:  []string{"tests/lib/card"},
	},
	// reads GOROOT and makes what go build -overlay takes: the standard library only
	"internal/overlay": {},
	// where servers have their admin sockets, and who runs
	"internal/running": {module: []string{"stack", "stack/admin"}, others: []string{xsys}},
	// linked into programs that "rdma-netstack build" builds; x/net: the type of a batch
	"unmodified": {
		module: []string{"stack", "stack/admin", "stack/metrics", "dv", "internal/running",
			"internal/backing", "clock"},
		others: []string{xsys, xnet}, tests: []string{"stack/stacktest", "cmd/rdma-netstack/lab"},
	},
	"unmodified/sim": {module: []string{"unmodified", "dv", "simnic/...",
		"cmd/rdma-netstack/lab"}},
	"internal/doctor":   {},
	"internal/firewall": {}, // rules of the host that a server beside Linux does not see
	"internal/doctor/host": {module: []string{"internal/doctor", "internal/backing",
		"internal/netlink"},
		others: []string{netlink, xsys},
		only:   map[string][]string{xsys: {"*_linux.go"}}},
	"internal/doctor/saved": {module: []string{"internal/doctor", "internal/doctor/host"}},
	"internal/doctor/card": {
		// wire: what frames come from; the rest of the model is for tests
		module: []string{"internal/doctor", "internal/probe", "dv", "dv/uverbs", "dv/mlx5",
			"simnic/wire", "simnic/frame"},
		others: []string{netlink, xsys},
		tests:  []string{"simnic/...", "cmd/rdma-netstack/lab"},
	},
	"internal/probe": { // the clients of the demo, which tests use too
		module: []string{"cmd/rdma-netstack/lab", "apps/httpd"},
		others: []string{dns}, tests: []string{netlink},
	},
	// Programs to copy from: the public packages only. What makes the software NIC is internal to
	// them.
	"examples/...": {module: []string{"stack", "stack/packets", "examples/internal/device"},
		tests: []string{"stack/stacktest"}},
	"examples/internal/device": {module: []string{"dv", "simnic/...", "cmd/rdma-netstack/lab"},
		tests: []string{"stack"}},
	"examples/dns": {module: []string{"stack", "examples/internal/device"},
		others: []string{dns}, tests: []string{"stack/stacktest"}},
	"examples/grpc": { // a module of its own: grpc is large
		module: []string{"stack", "examples/internal/device"},
		others: []string{"google.golang.org/grpc"}, tests: []string{"stack/stacktest"},
	},
	// Modules of their own, for programs to import: what they adapt a slice to is large.
	"contrib/quic": {module: []string{"stack"}, others: []string{xsys},
		tests: []string{"dv", "simnic", "simnic/frame", "simnic/kernel", "simnic/wire",
			"github.com/quic-go/quic-go"}},
	"contrib/pion": {module: []string{"stack"}, others: []string{"github.com/pion"},
		tests: []string{"stack/stacktest"}},
	"tests/...": {module: []string{"..."}, others: []string{gvisor, xsys, xnet, netlink, dns}},
	// a module of its own: what loads XDP programs and reads CPU profiles is of no use elsewhere
	"tests/bench/peers": {
		module: []string{"..."}, others: []string{gvisor, xsys, xnet, netlink, ebpf,
			pprof, "github.com/quic-go/quic-go", "github.com/valyala/fasthttp",
			"google.golang.org/grpc", "google.golang.org/protobuf"},
	},
	// a module of its own: the types of Kubernetes' API and kustomize are large
	"tests/e2e/kubernetes": {others: []string{"k8s.io/api/", "sigs.k8s.io/"}},
	"tests/e2e/unmodified/...": {
		module: []string{"cmd/rdma-netstack/lab", "dv", "internal/overlay", "stack",
			"tests/e2e/services/world"},
		others: untouched,
	},
	// Modules of their own, too: what they prove is that services neither know nor need gVisor.
	"tests/e2e/services/world": {module: []string{"cmd/rdma-netstack/lab", "dv", "simnic/...",
		"stack", "tests/lib/moving", "tests/lib/need", "clock"}},
	"tests/e2e/services/...": {
		module: []string{"tests/e2e/services/world", "tests/lib/netpair", "stack"},
		others: services,
	},
	"tests/e2e/services/anycast": {module: []string{"cmd/rdma-netstack/lab", "dv", "simnic/...",
		"stack", "stack/admin", "tests/e2e/services/world", "tests/lib/need"}},
	"tests/e2e/services/webrtc": {module: []string{"cmd/rdma-netstack/lab", "contrib/pion", "stack",
		"tests/e2e/services/world", "tests/lib/moving"}, others: []string{"github.com/pion"}},
	"tests/e2e/services/leak": {module: []string{"stack", "stack/stacktest"},
		others: []string{"go.uber.org/goleak"}},
}

// untouched lists the modules that rdma-netstack build is tried on, and those of their clients.
var untouched = []string{
	"github.com/caddyserver/caddy/v2", "github.com/cloudflare/tableflip",
	"github.com/coder/websocket", "github.com/coredns/coredns",
	"github.com/eclipse/paho.mqtt.golang",
	"github.com/gliderlabs/ssh", "github.com/go-sql-driver/mysql",
	"github.com/hashicorp/memberlist", "github.com/miekg/dns",
	"github.com/nats-io/nats.go", "github.com/panjf2000/gnet/v2", "github.com/pion/turn/v5",
	"github.com/quic-go/quic-go", "github.com/redis/go-redis/v9", "github.com/tidwall/redcon",
	"github.com/valyala/fasthttp", "go.etcd.io/etcd/client/v3", "go.etcd.io/etcd/server/v3",
	"golang.org/x/crypto", "golang.org/x/net", "golang.org/x/sys",
	"golang.zx2c4.com/wireguard",
}

// services lists the modules that the tests in tests/e2e/services run on the stack.
var services = []string{
	dns, "github.com/caddyserver/caddy/v2", "github.com/coredns", "github.com/gliderlabs/ssh",
	"github.com/prometheus/client_golang",
	"github.com/quic-go/quic-go", "github.com/summerwind/h2spec",
	"golang.org/x/crypto", "google.golang.org/grpc",
}

// anyTest is what every test file may import.
var anyTest = []string{"tests/lib/need", "tests/lib/moving", "tests/lib/onwire",
	"tests/lib/pipes", "tests/lib/racing", "clock", "clock/clocktest", "internal/random", xsys,
	xnet}

// unsafeFiles are the files (patterns) that may import unsafe; assembly is
// allowed in the first one's directory.
var unsafeFiles = []string{
	"internal/mmio/*_unsafe.go",
	"dv/uverbs/kernel_linux_unsafe.go", // the ioctl
	"tests/vm/pcie/*_unsafe.go",        // memory of a virtual machine
	"link/packet/mmsg_linux_unsafe.go", // recvmmsg, sendmmsg
	"link/xdp/kernel_linux_unsafe.go",  // getsockopt, rings that the kernel shares
	"internal/bpf/request_linux_unsafe.go",
	"privileges/*_linux_unsafe.go", // seccomp, capset, Landlock
	// the pools of package buffer, and the bytes of its chunks
	"link/rdma/internal/chunkmem/*_unsafe.go", "link/rdma/internal/chunkmem/*_unsafe_test.go",
}

// checkImports returns what is wrong with the imports of one file.
func checkImports(f *file) (wrong []string) {
	l, known := layerOf(f.dir())
	if !known {
		return []string{fmt.Sprintf("package %s is not in the import map", f.dir())}
	}
	for _, imp := range f.ast.Imports {
		name, err := strconv.Unquote(imp.Path.Value)
		if err != nil {
			return []string{err.Error()}
		}
		if bad := l.refuses(f, name, imp); bad != "" {
			wrong = append(wrong, bad)
		}
	}
	return wrong
}

// layerOf finds the entry of a directory: the longest name that covers it.
func layerOf(dir string) (layer, bool) {
	if l, ok := layers[dir]; ok {
		return l, true
	}
	best := ""
	for name := range layers {
		if covers(name, dir) && len(name) > len(best) {
			best = name
		}
	}
	l, ok := layers[best]
	return l, ok
}

// covers reports whether an entry names a package: "a/..." is a and all below.
func covers(entry, pkg string) bool {
	if base, ok := strings.CutSuffix(entry, "..."); ok {
		return strings.HasPrefix(pkg+"/", base)
	}
	return entry == pkg
}

// refuses says what is wrong with an import, "" if nothing is.
func (l layer) refuses(f *file, name string, imp *ast.ImportSpec) string {
	own, ours := strings.CutPrefix(name, module)
	switch {
	case name == "C":
		return "cgo"
	case name == "unsafe":
		return l.refusesUnsafe(f)
	case name == gvStack && (imp.Name == nil || imp.Name.Name != "gstack"):
		return "imports gVisor's stack by another name than gstack"
	case ours && !l.allows(f, own, l.module):
		return fmt.Sprintf("%s imports %s", f.dir(), own)
	case ours || !strings.Contains(strings.SplitN(name, "/", 2)[0], "."):
		return "" // this module, or the standard library
	case !l.allows(f, name, l.others):
		return fmt.Sprintf("%s imports %s", f.dir(), name)
	}
	return l.refusesFile(f, name)
}

func (l layer) refusesUnsafe(f *file) string {
	if matches(f.name, unsafeFiles) {
		return ""
	}
	return "imports unsafe"
}

// refusesFile applies the rules on which file may import what.
func (l layer) refusesFile(f *file, name string) string {
	for prefix, files := range l.only {
		if hasPrefix(name, prefix) && !f.isTest() && !matches(path.Base(f.name), files) {
			return fmt.Sprintf("imports %s outside %s", name, strings.Join(files, ", "))
		}
	}
	return ""
}

// allows reports whether a list, or in tests what tests may import, has name.
func (l layer) allows(f *file, name string, list []string) bool {
	if f.isTest() {
		if own := f.dir(); name == own { // external test package
			return true
		}
		list = append(append(append([]string(nil), list...), l.tests...), anyTest...)
	}
	for _, entry := range list {
		if entry == name || covers(entry, name) || hasPrefix(name, entry) &&
			strings.Contains(entry, ".") {
			return true
		}
	}
	return false
}

// hasPrefix is strings.HasPrefix on whole path elements.
func hasPrefix(name, prefix string) bool {
	return strings.HasPrefix(name+"/", strings.TrimSuffix(prefix, "/")+"/")
}

func matches(name string, patterns []string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, name); ok {
			return true
		}
	}
	return false
}
