//go:build linux

package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
	"github.com/rdma-netstack/rdma-netstack/tests/vm/rig"
)

// Rules by address and port beside the kernel, which has the same MAC and addresses: what the
// device's rules come to under stock kernels. A port that no rule takes is the kernel's, which
// refuses connections to it.

// steer starts the guest's subcommand of rules.
func (w *world) steer(t *testing.T, rules ...string) (job int) {
	t.Helper()
	job = w.start(t, append([]string{"/init", "rules"}, rules...)...)
	eventually(t, func() string { return "steering: " + w.output(t, job) },
		func() bool { return strings.Contains(w.output(t, job), "steering\n") })
	return job
}

// dialing connects to a port of the guest from outside, for a time.
func (w *world) dialing(port uint16, to netip.Addr, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(w.ctx, limit)
	defer cancel()
	conn, err := w.outside.DialContext(ctx, "tcp", netip.AddrPortFrom(to, port).String())
	if err == nil {
		conn.Close()
	}
	return err
}

// kernels checks that the kernel has these TCP ports.
func (w *world) kernels(t *testing.T, to netip.Addr, ports ...uint16) {
	t.Helper()
	for _, p := range ports {
		if err := w.dialing(p, to, patience); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("port %d: %v, want the kernel's refusal", p, err)
		}
	}
}

// steered checks that connections to these TCP ports come to the rules of a job, and none of them
// to the kernel.
func (w *world) steered(t *testing.T, job int, to netip.Addr, ports ...uint16) {
	t.Helper()
	for _, p := range ports {
		line := fmt.Sprintf("got 6 %d\n", p)
		before := strings.Count(w.output(t, job), line)
		dialed := make(chan error, 1)
		ctx, cancel := context.WithCancel(w.ctx)
		go func() {
			_, err := w.outside.DialContext(ctx, "tcp", netip.AddrPortFrom(to, p).String())
			dialed <- err
		}()
		eventually(t, func() string { return line + "in: " + w.output(t, job) },
			func() bool { return strings.Count(w.output(t, job), line) > before })
		cancel()
		if err := <-dialed; errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("port %d: the kernel got it, too", p)
		}
	}
}

// testPortMasks: a masked rule takes 256 ports and no other, a listener's one.
func testPortMasks(t *testing.T, w *world) {
	v4, v6 := netdev4.Addr(), netdev6.Addr()
	job := w.steer(t, "3/tcp/"+v4.String()+"/61440/256", "3/tcp/"+v6.String()+"/65280/256",
		"2/tcp/"+v4.String()+"/443/1")
	w.steered(t, job, v4, 61440, 61567, 61695, 443)
	w.steered(t, job, v6, 65280, 65535)
	w.kernels(t, v4, 61439, 61696, 442)
	w.kernels(t, v6, 65279, 61440)
	w.pinged(t, v4)
	w.must(t, rig.Request{Op: "signal", Job: job, Signal: int(unix.SIGUSR1)})
	eventually(t, func() string { return "the rules: " + w.output(t, job) }, func() bool {
		return strings.Contains(w.output(t, job), "rule 3 TCP ports 65280 to 65535 of")
	})
	contains(t, w.output(t, job), "rule 0 fragments,", "rule 2 TCP port 443 of")
	if strings.Contains(w.output(t, job), ": 0 packets") &&
		strings.Count(w.output(t, job), ": 0 packets") != 2 { // fragments, VLANs
		t.Errorf("rules without hits:\n%s", w.output(t, job))
	}
	w.stopRules(t, job)
	w.kernels(t, v4, 61440, 443)
}

// stopRules ends the subcommand in order.
func (w *world) stopRules(t *testing.T, job int) {
	t.Helper()
	r, err := w.vm.Do(rig.Request{Op: "stop", Job: job, Signal: int(unix.SIGTERM),
		Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Errorf("rules ended with %d, %v:\n%s", r.Code, err, r.Output)
	}
}

// testTagConflict: a port of one process is refused to another until the first ends, by SIGKILL.
func testTagConflict(t *testing.T, w *world) {
	v4 := netdev4.Addr()
	rule := "2/tcp/" + v4.String() + "/443/1"
	first := w.steer(t, rule)
	second := w.steer(t, rule, "2/tcp/"+v4.String()+"/444/1")
	contains(t, w.output(t, second),
		"refused: TCP port 443 of "+v4.String()+" is steered by another process (tag")
	w.steered(t, first, v4, 443)
	w.steered(t, second, v4, 444)
	if out := w.output(t, second); strings.Contains(out, "got 6 443") {
		t.Errorf("the second got frames of the first:\n%s", out)
	}
	w.stopRules(t, second)
	if _, err := w.vm.Do(rig.Request{Op: "stop", Job: first, Signal: int(unix.SIGKILL),
		Timeout: patience}); err != nil {
		t.Fatal(err)
	}
	w.kernels(t, v4, 443)
	third := w.steer(t, rule)
	w.steered(t, third, v4, 443)
	w.stopRules(t, third)
}

// testMergedRules: without tags the same rule of two contexts is one, and both get each frame.
func testMergedRules(t *testing.T, w *world) {
	need.That(t, "compiler", w.verbsErr)
	job := w.verbs(t, "merge", "merged")
	conn, err := w.outside.DialContext(w.ctx, "udp",
		netip.AddrPortFrom(netdev4.Addr(), 5000).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range 16 {
		if _, err := conn.Write(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := w.vm.Do(rig.Request{Op: "wait", Job: job, Timeout: patience})
	if err != nil || r.Code != 0 {
		t.Errorf("exit %d, %v: %s", r.Code, err, r.Output)
	}
}

// testLeftToLinux: a rule that misses by default leaves a port of a block to the kernel.
func testLeftToLinux(t *testing.T, w *world) {
	v4 := netdev4.Addr()
	job := w.steer(t, "3/tcp/"+v4.String()+"/61440/256", "0/tcp/"+v4.String()+"/61450/1")
	w.kernels(t, v4, 61450)
	w.steered(t, job, v4, 61449, 61451)
	w.stopRules(t, job)
}

// testBeforeNtuple: a rule of ours comes before one of ethtool for the same port, which works as
// soon as ours is gone.
func testBeforeNtuple(t *testing.T, w *world) {
	const port, short = 5003, 2 * time.Second
	v4 := netdev4.Addr()
	w.run(t, "ethtool", "-K", "eth0", "ntuple", "on")
	w.run(t, "ethtool", "-N", "eth0", "flow-type", "tcp4", "dst-ip", v4.String(), "dst-port",
		fmt.Sprint(port), "action", "-1", "loc", "1")
	drops := func(when string) {
		t.Helper()
		// the context's end, or that of the system call's deadline, which is the same
		var late net.Error
		if err := w.dialing(port, v4, short); !errors.As(err, &late) || !late.Timeout() {
			t.Errorf("%s: %v, want no answer", when, err)
		}
	}
	drops("with ethtool's rule")
	job := w.steer(t, fmt.Sprintf("2/tcp/%v/%d/1", v4, port))
	w.steered(t, job, v4, port)
	w.stopRules(t, job)
	drops("after our rule")
	w.run(t, "ethtool", "-N", "eth0", "delete", "1")
	w.kernels(t, v4, port)
	w.run(t, "ethtool", "-K", "eth0", "ntuple", "off")
}

// testDenied makes the kernel take rules that drop what a denied source sends in numbers.
func testDenied(t *testing.T, w *world) {
	s := w.serve(t, "http", "--debug-endpoints")
	w.deniedBefore(t, func() uint64 { return w.nic.Counters().Slice.RxPackets }, func() {
		contains(t, w.run(t, "rdma-netstack", "status", "rules"), "nobody (dropped)",
			"UDP from "+outside4.Addr().String()+"/32 to ports 0 to 32767")
	})
	eventually(t, func() string { return "no rule is left" }, func() bool {
		return !strings.Contains(w.run(t, "rdma-netstack", "status", "rules"), "dropped")
	})
	s.stop(t)
}

// deniedBefore denies a source of the server that runs: what it sends in numbers does not come to
// the rings, whose received frames came counts; what it sends to the netdev is the kernel's, as
// before. It is served again once it is denied no more. While it is denied, look is called.
func (w *world) deniedBefore(t *testing.T, came func() uint64, look func()) {
	t.Helper()
	if err := w.client.Download(w.ctx, url(slice4, 80), bulk/8); err != nil {
		t.Fatal(err)
	}
	source := outside4.Addr().String()
	w.run(t, "rdma-netstack", "filter", "deny", source)
	conn, err := w.outside.DialContext(w.ctx, "udp", netip.AddrPortFrom(slice4.Addr(), 9).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	flood := func(n int) {
		for range n {
			_, _ = conn.Write([]byte("flood")) // what is lost is lost
		}
	}
	show := func() string { return w.run(t, "rdma-netstack", "filter", "show") }
	eventually(t, show, func() bool {
		flood(300)
		return strings.Contains(show(), "2 rules in the NIC or the sockets, 0 without room; 0 ref")
	})
	look()
	before := came()
	flood(1000)
	w.kernels(t, netdev4.Addr(), 443)
	w.pinged(t, netdev4.Addr())
	w.pinged(t, slice6.Addr())
	if n := came() - before; n > 500 {
		t.Errorf("%d frames came to the rings", n)
	}
	eventually(t, show, func() bool { return !strings.Contains(show(), "ahead  0 packets") })
	w.run(t, "rdma-netstack", "filter", "forget", source)
	if err := w.client.Download(w.ctx, url(slice4, 80), bulk/8); err != nil {
		t.Errorf("denied no more: %v", err)
	}
}
