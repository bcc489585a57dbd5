//go:build linux

package vm

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rdma-netstack/rdma-netstack/cmd/rdma-netstack/lab"
	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Functions behind an e-switch that follows the lists which the guest's own driver writes. Each
// function runs in its own machine.

// function is one row of the table.
type function struct {
	name   string
	kind   simnic.Function
	device uint16 // PCI device id
	ownMAC bool   // the slice may use a MAC of its own
	groups bool   // all-multicast mode has an effect
	// kernels are those under which make test has it, one of them among the first that are tested;
	// make test-vm has it under all.
	kernels []string
}

var pciFunctions = []function{
	{"VF", simnic.Function{Kind: simnic.VF, SpoofCheck: true}, 0x1018, false, false,
		[]string{"7.2", "6.1"}},
	{"VF, no spoofchk", simnic.Function{Kind: simnic.VF}, 0x101e, true, false,
		[]string{"6.12", "7.3"}},
	{"trusted VF", simnic.Function{Kind: simnic.VF, Trusted: true}, 0x101e, true, true,
		[]string{"7.2", "6.1"}},
	{"PF with SR-IOV", simnic.Function{Kind: simnic.SwitchPF}, 0x101d, true, true,
		[]string{"6.12", "7.3"}},
}

// functionRows are the rows of the table for the functions.
func functionRows() (rows []check) {
	for _, f := range pciFunctions {
		rows = append(rows, check{name: f.name})
	}
	return rows
}

// functionTime is enough for one function.
const functionTime = 2 * time.Minute

// testFunctions tests each function under one kernel.
func testFunctions(t *testing.T, ctx context.Context, p *machineParts, version string, tab *table) {
	for _, f := range pciFunctions {
		if os.Getenv("VM") == "" && !slices.Contains(f.kernels, version) {
			continue // make test-vm has it
		}
		tab.run(t, version, f.name, functionTime, func(t *testing.T) {
			w := boot(t, ctx, p, version, simnic.Config{Seed: 1, Function: f.kind},
				pcie.Config{DeviceID: f.device, Pacing: true})
			testProbe(t, w)
			w.isFunction(t, f)
			testNetdevPing(t, w)
			w.spoofs(t, f)
			w.servesGiven(t, f)
			w.servesLearned(t, f)
			w.filters(t, f)
			if f.ownMAC {
				w.paces(t)
			}
			w.noComplaints(t)
		})
	}
}

// mac is the value of the slice's MAC option.
func (f function) mac() string {
	if f.ownMAC {
		return sliceMAC
	}
	return "netdev"
}

// isFunction checks what the guest sees: the device id, no link to a physical function, and the MAC
// that the hypervisor assigned.
func (w *world) isFunction(t *testing.T, f function) {
	t.Helper()
	read := func(path string) string {
		return strings.TrimSpace(w.must(t, rig.Request{Op: "read", Path: path}).Output)
	}
	const device = "/sys/class/infiniband/mlx5_0/device/"
	if got, want := read(device+"device"), fmt.Sprintf("%#x", f.device); got != want {
		t.Errorf("PCI device id %s, want %s", got, want)
	}
	if out := w.must(t, rig.Request{Op: "glob", Path: device + "physfn"}).Output; out != "" {
		t.Errorf("%s is there", out)
	}
	if got, want := read("/sys/class/net/eth0/address"), w.nic.MAC().String(); got != want {
		t.Errorf("the netdev has %s, the hypervisor gave %s", got, want)
	}
	if f.kind.Kind != simnic.VF {
		return
	}
	out, code := w.try(t, "rdma-netstack", "serve", "http", "--device", "mlx5_0",
		"--address", slice4.String())
	if code == 0 || !strings.Contains(out, "is a virtual function") {
		t.Errorf("a slice with a random MAC: exit %d\n%s", code, out)
	}
}

// announced is longer than a slice sends announcements of its addresses.
const announced = 5 * time.Second

// servesGiven serves on given addresses. The clients must resolve the slice's address by ARP and by
// neighbour discovery, after its announcements have ended.
func (w *world) servesGiven(t *testing.T, f function) {
	t.Helper()
	s := w.serveAs(t, f, "--address", slice4.String(), "--address", slice6.String())
	for start, over := time.Now(), false; !over; {
		over = time.Since(start) > announced
		w.forgetNeighbours(t)
		w.pinged(t, slice4.Addr())
		w.pinged(t, slice6.Addr())
	}
	for _, to := range []netip.Prefix{slice4, slice6} {
		if err := w.client.Download(w.ctx, url(to, 80), bulk/8); err != nil {
			t.Error(err)
		}
	}
	s.stop(t)
}

// serveAs starts the web server with the MAC that the function allows.
func (w *world) serveAs(t *testing.T, f function, args ...string) *server {
	t.Helper()
	w.forgetNeighbours(t)
	argv := append([]string{"rdma-netstack", "serve", "http", "--debug-endpoints", "--device",
		"mlx5_0", "--mac", f.mac(), "--queues", "2"}, args...)
	s := &server{w, w.start(t, argv...)}
	eventually(t, func() string { return "rdma-netstack says: " + w.output(t, s.job) },
		func() bool { return strings.Contains(w.output(t, s.job), "serving") })
	return s
}

// forgetNeighbours empties the neighbour tables outside, so that addresses are resolved again.
func (w *world) forgetNeighbours(t *testing.T) {
	t.Helper()
	cmd := exec.Command("ip", "neigh", "flush", "dev", "wire0")
	if err := w.outside.Start(cmd); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

var servingOn = regexp.MustCompile(`serving HTTP on (\S+) and (\S+) `)

// servesLearned serves on addresses from DHCP and router advertisements.
func (w *world) servesLearned(t *testing.T, f function) {
	t.Helper()
	stop := w.dnsmasq(t)
	defer stop()
	s := w.serveAs(t, f, "--address", "dhcp", "--address", "slaac")
	m := servingOn.FindStringSubmatch(w.output(t, s.job))
	if m == nil {
		t.Fatalf("no address of each family: %s", w.output(t, s.job))
	}
	for _, a := range m[1:] {
		addr, err := netip.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		w.pinged(t, addr)
		if err := w.client.Download(w.ctx,
			url(netip.PrefixFrom(addr, 0), 80), bulk/32); err != nil {
			t.Error(err)
		}
	}
	s.stop(t)
}

// dnsmasq runs a DHCP server and a router on the wire.
func (w *world) dnsmasq(t *testing.T) (stop func()) {
	t.Helper()
	need.Tool(t, "dnsmasq")
	cmd := exec.Command("dnsmasq", "--no-daemon", "--conf-file=/dev/null", "--interface=wire0",
		"--bind-interfaces", "--no-ping", "--user=root", "--port=0", "--enable-ra",
		"--dhcp-range=10.77.0.100,10.77.0.110,2m", "--dhcp-range=fd77::,ra-only,64,2m",
		"--dhcp-leasefile="+filepath.Join(t.TempDir(), "leases"))
	if err := w.outside.Start(cmd); err != nil {
		t.Fatal(err)
	}
	return func() { cmd.Process.Kill(); cmd.Wait() }
}

// spoofs tests a slice with a MAC of its own while the spoof check is on: its frames are dropped,
// and counted.
func (w *world) spoofs(t *testing.T, f function) {
	t.Helper()
	if f.ownMAC {
		return
	}
	s := w.serve(t, "http")
	if pongs, err := w.client.Ping(w.ctx, slice4.Addr(), 2); err == nil && pongs.Received > 0 {
		t.Errorf("a MAC of its own is heard although the spoof check is on: %v", pongs)
	}
	if n := w.nic.Counters().Drops.Spoofed; n == 0 {
		t.Error("nothing was dropped for its source")
	}
	s.stop(t)
}

// filters sends frames from outside to addresses that the function has not listed, after the slice
// has ended, and with all-multicast mode on.
func (w *world) filters(t *testing.T, f function) {
	t.Helper()
	group := net.HardwareAddr{0x33, 0x33, 0xff, 0x77, 0x77, 0x77}
	if w.reaches(t, group) {
		t.Error("a group that nobody has joined passes")
	}
	if own, _ := net.ParseMAC(sliceMAC); w.reaches(t, own) {
		t.Error("the slice's MAC still passes without the slice")
	}
	w.run(t, "ip", "link", "set", "eth0", "allmulticast", "on")
	if f.groups {
		eventually(t, func() string { return "all multicast to count" },
			func() bool { return w.reaches(t, group) })
	} else if w.reaches(t, group) {
		t.Error("all-multicast mode counts for a function that is not trusted")
	}
	w.run(t, "ip", "link", "set", "eth0", "allmulticast", "off")
	testNetdevPing(t, w)
}

// reaches sends frames from outside and reports whether the e-switch passes them.
func (w *world) reaches(t *testing.T, dst net.HardwareAddr) bool {
	t.Helper()
	const frames = 50 // other frames arrive meanwhile, but fewer
	before := w.nic.Counters()
	if err := w.outside.Do(func() error {
		port, err := lab.OpenPort("wire0")
		if err != nil {
			return err
		}
		defer port.Close()
		for range frames {
			if err := port.Send(probe.EtherFrame(dst, port.MAC, probe.Experimental,
				[]byte("to one"))); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string { return "frames on the wire" }, func() bool {
		return w.nic.Counters().Wire.RxPackets >= before.Wire.RxPackets+frames
	})
	return w.nic.Counters().Drops.SwitchFilter < before.Drops.SwitchFilter+frames/2
}
