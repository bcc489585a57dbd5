//go:build linux

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/pcie"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// countedKernel runs the machines that count instructions.
const countedKernel = xdpDriverKernel

// countedDatagrams says how many datagrams are answered in each measurement.
const countedDatagrams = 20000

// TestInstructions counts the instructions that datagrams and TCP cost a server in a virtual
// machine, its kernel's included, with the clock of the machine: what else the host has to do is
// not in the figures. The rings are those of the model, in zero copy AF_XDP is on virtio_net.
func TestInstructions(t *testing.T) {
	if os.Getenv("INSTRUCTIONS") == "" {
		need.That(t, "counts", errors.New("make test-vm-instructions runs it, in 10 minutes"))
	}
	need.TUN(t)
	p := gather(t, t.Context())
	p.second = func(w *world, p *machineParts, m *rig.Machine) {
		need.That(w, "packages", p.cache.AddModules(w.ctx, w.kernel, xdpSet, "virtio_pci",
			"virtio_net"))
		w.addSecond(m)
		m.StandbyDevice = xdpDrivers[0].device
		m.Count = true
	}
	w := boot(t, t.Context(), p, countedKernel, simnic.Config{Seed: 1}, pcie.Config{})
	testProbe(t, w)
	t.Run("echo", func(t *testing.T) { w.countEchoes(t) })
	t.Run("TCP", func(t *testing.T) { w.countTCP(t) })
	t.Run("DNS", func(t *testing.T) { w.countQueries(t) })
}

// countEchoes compares echo servers on the kernel's stack and on rings.
func (w *world) countEchoes(t *testing.T) {
	slice := []string{"-mac", sliceMAC, "-address", slice4.String()}
	for _, tt := range []struct {
		name string
		at   netip.Addr
		args []string
	}{
		{"kernel", netdev4.Addr(), nil},
		{"rings, reads and writes", slice4.Addr(), slice},
		{"rings, handler", slice4.Addr(), append(slice[:len(slice):len(slice)], "-handler")},
	} {
		job := w.start(t, append([]string{"/init", "echo"}, tt.args...)...)
		eventually(t, func() string { return "echo says: " + w.output(t, job) },
			func() bool { return strings.Contains(w.output(t, job), "echoing") })
		w.countAnswers(t, tt.name, w.processOf(t, "init", "echo"),
			netip.AddrPortFrom(tt.at, 7), make([]byte, 64))
		w.must(t, rig.Request{Op: "stop", Job: job, Signal: 9, Timeout: patience})
	}
}

// Each measurement of TCP sends so much.
const (
	countedRequests = 4000
	countedConns    = 2000
	countedBytes    = 64 << 20
)

// countTCP compares the project's web server on the kernel's stack and on rings: by what a request
// costs over a connection that lasts, what one costs with a connection of its own, and what a MiB
// costs each way.
func (w *world) countTCP(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   netip.Addr
		args []string
	}{
		{"kernel", netdev4.Addr(), nil},
		{"rings", slice4.Addr(), []string{"-mac", sliceMAC, "-address", slice4.String()}},
	} {
		job := w.start(t, append([]string{"/init", "web"}, tt.args...)...)
		eventually(t, func() string { return "web says: " + w.output(t, job) },
			func() bool { return strings.Contains(w.output(t, job), "serving") })
		pid := w.processOf(t, "init", "web")
		count := func(what string, n int, do func()) {
			before := w.clocks(t, pid)
			do()
			after := w.clocks(t, pid)
			each := func(spent time.Duration) float64 {
				return float64(spent.Nanoseconds()) / rig.NanosPerInstruction / float64(n)
			}
			t.Logf("%-8s %-34s %7.0f instructions of the process, %7.0f of the machine", tt.name,
				what, each(after.process-before.process), each(after.machine-before.machine))
		}
		page := fmt.Sprintf("http://%v/-/bytes/512", tt.at)
		w.request(t, page, 1, countedRequests/10, false) // caches and neighbours are warm
		for _, conns := range []int{1, 32} {
			count(fmt.Sprintf("a request, %d connections", conns), countedRequests,
				func() { w.request(t, page, conns, countedRequests, false) })
			count(fmt.Sprintf("a connection, %d at once", conns), countedConns,
				func() { w.request(t, page, conns, countedConns, true) })
		}
		bulk := fmt.Sprintf("http://%v/-/bytes/%d", tt.at, countedBytes/4)
		for _, conns := range []int{1, 4} {
			count(fmt.Sprintf("a MiB from the server, %d flows", conns), countedBytes>>20,
				func() { w.request(t, bulk, conns, 4, false) })
			count(fmt.Sprintf("a MiB to the server, %d flows", conns), countedBytes>>20,
				func() { w.upload(t, netip.AddrPortFrom(tt.at, 9), conns) })
		}
		w.must(t, rig.Request{Op: "stop", Job: job, Signal: 9, Timeout: patience})
	}
}

// request gets a page n times over so many connections, with fresh over one for each time.
func (w *world) request(t *testing.T, url string, conns, n int, fresh bool) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: w.outside.DialContext,
		MaxIdleConnsPerHost: conns, DisableKeepAlives: fresh}, Timeout: patience}
	defer c.CloseIdleConnections()
	var asked atomic.Int64
	var all sync.WaitGroup
	for range conns {
		all.Go(func() {
			for asked.Add(1) <= int64(n) {
				r, err := c.Get(url)
				if err == nil {
					_, err = io.Copy(io.Discard, r.Body)
					r.Body.Close()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// upload sends countedBytes over so many connections, and waits until they have been read.
func (w *world) upload(t *testing.T, to netip.AddrPort, conns int) {
	t.Helper()
	var all sync.WaitGroup
	for range conns {
		all.Go(func() {
			c, err := w.outside.DialContext(context.Background(), "tcp", to.String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			b := make([]byte, 1<<20)
			for range countedBytes >> 20 / conns {
				if _, err := c.Write(b); err != nil {
					t.Error(err)
					return
				}
			}
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				t.Error(err)
			}
			if _, err := c.Read(b); err != io.EOF {
				t.Errorf("the end of what was sent: %v", err)
			}
		})
	}
	all.Wait()
}

// countQueries compares DNS servers on packet sockets and on AF_XDP in zero copy, on virtio_net.
func (w *world) countQueries(t *testing.T) {
	w.must(t, rig.Request{Op: "load", Path: xdpSet, Timeout: patience})
	var name string
	eventually(t, func() string { return "a netdev of virtio_net" }, func() bool {
		path := w.must(t, rig.Request{Op: "glob", Path: xdpDrivers[0].netdevs}).Output
		name = filepath.Base(path)
		return path != ""
	})
	w.run(t, "ip", "link", "set", name, "up")
	w.run(t, "ethtool", "-K", name, "rxvlan", "off")
	query := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
	packed, err := query.Pack()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range [][]string{{"packet"}, {"xdp", "--xdp-send", "sockets"},
		{"xdp", "--xdp-send", "rings"}} {
		job := w.start(t, append([]string{"rdma-netstack", "serve", "dns", "--zone",
			"/etc/example.zone", "--response-rate", "0", "--mac", sliceMAC, "--address",
			slice4.String(), "--device", name, "--log-level", "info", "--backend"}, link...)...)
		eventually(t, func() string { return "rdma-netstack says: " + w.output(t, job) },
			func() bool { return strings.Contains(w.output(t, job), "try: ") })
		if link[0] == "xdp" {
			contains(t, w.output(t, job), "served through AF_XDP in zero copy")
		}
		w.countAnswers(t, strings.Join(link, " "), w.processOf(t, "rdma-netstack", "dns"),
			netip.AddrPortFrom(slice4.Addr(), 53), packed)
		w.must(t, rig.Request{Op: "stop", Job: job, Signal: 15, Timeout: patience})
	}
}

// processOf returns the number of the process whose command line has all of these words.
func (w *world) processOf(t *testing.T, words ...string) int {
	t.Helper()
	paths := w.must(t, rig.Request{Op: "glob", Path: "/proc/[0-9]*/cmdline"}).Output
	for _, path := range strings.Fields(paths) {
		r, err := w.vm.Do(rig.Request{Op: "read", Path: path})
		if err != nil {
			continue // it has ended
		}
		found := true
		for _, word := range words {
			found = found && strings.Contains(r.Output, word)
		}
		if n, err := strconv.Atoi(strings.Split(path, "/")[2]); found && err == nil && n > 1 {
			return n
		}
	}
	t.Fatalf("no process runs %q", words)
	return 0
}

// countAnswers asks a server with one request and with 32 in flight, and logs what each answer has
// cost its process, and the whole machine.
func (w *world) countAnswers(t *testing.T, name string, pid int, to netip.AddrPort, ask []byte) {
	t.Helper()
	w.askFor(t, to, ask, 1, countedDatagrams/10) // caches and neighbours are warm
	for _, inFlight := range []int{1, 32} {
		before := w.clocks(t, pid)
		lost := w.askFor(t, to, ask, inFlight, countedDatagrams)
		after := w.clocks(t, pid)
		each := func(spent time.Duration) float64 {
			return float64(spent.Nanoseconds()) / rig.NanosPerInstruction / countedDatagrams
		}
		t.Logf("%-24s %2d in flight: %6.0f instructions of the process, %6.0f of the machine; "+
			"%d asked again", name, inFlight, each(after.process-before.process),
			each(after.machine-before.machine), lost)
	}
}

// clocks tells what a process, and all that is not idle, has taken of the processors.
type clocks struct{ process, machine time.Duration }

// clockTick gives the unit of /proc/stat and /proc/PID/stat, see proc(5).
const clockTick = 10 * time.Millisecond

func (w *world) clocks(t *testing.T, pid int) (c clocks) {
	t.Helper()
	number := func(s string) time.Duration {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(n) * clockTick
	}
	stat := w.must(t, rig.Request{Op: "read", Path: fmt.Sprintf("/proc/%d/stat", pid)}).Output
	_, behind, _ := strings.Cut(stat, ") ")
	f := strings.Fields(behind) // from field 3 on
	c.process = number(f[14-3]) + number(f[15-3])
	all, _, _ := strings.Cut(w.must(t, rig.Request{Op: "read", Path: "/proc/stat"}).Output, "\n")
	const idle, iowait, ofGuests = 4, 5, 9 // guests are in user time as well
	for i, s := range strings.Fields(all) {
		if i > 0 && i != idle && i != iowait && i < ofGuests {
			c.machine += number(s)
		}
	}
	return c
}

// askFor sends that many requests, inFlight at a time, each again after a while without an
// answer, and returns how many were sent again.
func (w *world) askFor(t *testing.T, to netip.AddrPort, ask []byte, inFlight, n int) (again int) {
	t.Helper()
	var asked, lost atomic.Int64
	var all sync.WaitGroup
	for range inFlight {
		all.Go(func() {
			conn, err := w.outside.DialContext(context.Background(), "udp", to.String())
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			answer := make([]byte, 2048)
			for asked.Add(1) <= int64(n) {
				for tries := 0; ; tries++ {
					if tries == 20 {
						t.Errorf("%v does not answer", to)
						return
					}
					_, err := conn.Write(ask)
					if err == nil {
						conn.SetReadDeadline(time.Now().Add(3 * time.Second))
						_, err = conn.Read(answer)
					}
					var timeout net.Error
					if err == nil {
						break
					} else if !errors.As(err, &timeout) || !timeout.Timeout() {
						t.Error(err)
						return
					}
					lost.Add(1)
				}
			}
		})
	}
	all.Wait()
	return int(lost.Load())
}
