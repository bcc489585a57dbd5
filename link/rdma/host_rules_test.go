package rdma

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rdma-netstack/rdma-netstack/dv"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/kernel"
)

var ruleAddr = netip.MustParseAddr("192.0.2.1")

// openHostDevice opens another device of a NIC, in host mode.
func openHostDevice(t testing.TB, nic *simnic.NIC) *dv.Device {
	t.Helper()
	dev, err := dv.Open(t.Context(), dv.Config{NIC: dv.NIC{
		Model: dv.Model{
			Kernel: kernel.Opener(nic),
			Facts:  dv.PortFacts{Name: "sim", Netdev: "net", MAC: nic.MAC(), MTU: nic.MTU()},
		},
	}, HostMode: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// hostWorld is a NIC, a device on it in host mode, and an endpoint over that.
func hostWorld(t testing.TB) (*simnic.NIC, *dv.Device, *Endpoint) {
	t.Helper()
	nic, err := simnic.New(simnic.Config{MAC: []byte{2, 0, 0, 0, 0, 9}, Seed: 9})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nic.Close() })
	dev := openHostDevice(t, nic)
	e, err := New(dev, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return nic, dev, e
}

func tcpPort(port uint16) dv.HostRule {
	return dv.HostRule{Priority: dv.PriorityListener, Proto: 6, Addr: ruleAddr, Port: port}
}

// matches is what the rules of ports in a list match; those that wait in brackets.
func matches(list []RuleInfo) (all []string) {
	for _, r := range list {
		match, _, _ := strings.Cut(r.Match, ", MAC")
		switch {
		case match == "fragments", match == "frames with a VLAN tag":
			continue
		case r.Waiting != "":
			match = "[" + match + ": " + r.Waiting + "]"
		}
		all = append(all, match)
	}
	return all
}

func wantRules(t *testing.T, when string, list []RuleInfo, want ...string) {
	t.Helper()
	if got := matches(list); !slices.Equal(got, want) {
		t.Errorf("%s: rules %q, want %q", when, got, want)
	}
}

// TestHostRules adds a rule twice and removes it twice; Close removes what is left.
func TestHostRules(t *testing.T) {
	_, dev, e := hostWorld(t)
	ctx := t.Context()
	const web, dns = "TCP port 443 of 192.0.2.1", "TCP port 53 of 192.0.2.1"
	one := tcpPort(443)
	one.Ports = 1 // the default
	for _, r := range []dv.HostRule{tcpPort(443), one, tcpPort(53)} {
		if err := e.AddRule(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	wantRules(t, "added", e.Rules(), web, dns)
	for range 2 {
		if err := e.RemoveRule(one); err != nil {
			t.Fatal(err)
		}
	}
	wantRules(t, "one removed", e.Rules(), dns)
	if err := e.AddRule(ctx, dv.HostRule{}); !errors.Is(err, dv.ErrConfig) {
		t.Errorf("bad rule: %v", err)
	}
	e.Close()
	if n := len(matches(infos(dev))); n != 0 {
		t.Errorf("the device has %d rules after Close", n)
	}
	if err := e.AddRule(ctx, one); !errors.Is(err, dv.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	e.Close()
}

// infos is the rules of a device as those of an endpoint.
func infos(dev *dv.Device) (list []RuleInfo) {
	for _, r := range dev.Rules() {
		list = append(list, RuleInfo{RuleInfo: r})
	}
	return list
}

// TestAddBlock: of a block all rules are added or none; the next block is free.
func TestAddBlock(t *testing.T) {
	nic, _, e := hostWorld(t)
	ctx, v6 := t.Context(), netip.MustParseAddr("2001:db8::1")
	blocks := Blocks()
	if len(blocks) != 16 || blocks[0] != 61440 || blocks[15] != 65280 {
		t.Errorf("blocks %v", blocks)
	}
	other := openHostDevice(t, nic)
	taken, err := other.AddRule(dv.HostRule{Priority: dv.PriorityBlock, Proto: 17, Addr: v6,
		Port: blocks[0], Ports: dv.BlockPorts})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.AddBlock(ctx, blocks[0], ruleAddr, v6); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("block of another: %v", err)
	}
	wantRules(t, "refused", e.Rules())
	for range 2 {
		if err := e.AddBlock(ctx, blocks[1], ruleAddr); err != nil {
			t.Fatal(err)
		}
	}
	const first = "TCP ports 61696 to 61951 of 192.0.2.1"
	wantRules(t, "added", e.Rules(), first, "UDP"+first[3:])
	if err := e.RemoveBlock(blocks[1], ruleAddr, v6); err != nil {
		t.Error(err)
	}
	wantRules(t, "removed", e.Rules())
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.AddBlock(ctx, blocks[0], ruleAddr, v6); err != nil {
		t.Errorf("block that is free again: %v", err)
	}
}

// TestRulesSurviveDevice: while there is no device rules wait, and the next one has them all but
// those that another process took meanwhile, which say so.
func TestRulesSurviveDevice(t *testing.T) {
	nic, dev, e := hostWorld(t)
	ctx := t.Context()
	const web, dns, ssh = "TCP port 443 of 192.0.2.1", "TCP port 53 of 192.0.2.1",
		"TCP port 22 of 192.0.2.1"
	for _, port := range []uint16{443, 53} {
		if err := e.AddRule(ctx, tcpPort(port)); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Switch(None()); err != nil {
		t.Fatal(err)
	}
	if n := len(matches(infos(dev))); n != 0 {
		t.Errorf("the device that is not used has %d rules", n)
	}
	if err := e.AddRule(ctx, tcpPort(22)); err != nil {
		t.Fatal(err)
	}
	wait := func(match string) string { return "[" + match + ": no device]" }
	wantRules(t, "without a device", e.Rules(), wait(web), wait(dns), wait(ssh))
	thief := openHostDevice(t, nic)
	stolen, err := thief.AddRule(tcpPort(53))
	if err != nil {
		t.Fatal(err)
	}
	next := openHostDevice(t, nic)
	if err := e.Switch(Rings(next)); err != nil {
		t.Fatal(err)
	}
	got := matches(e.Rules())
	if len(got) != 3 || got[0] != web || got[1] != ssh ||
		!strings.HasPrefix(got[2], "["+dns+": "+dns+" is steered by another process") {
		t.Errorf("on the next device: %q", got)
	}
	if err := e.AddRule(ctx, tcpPort(53)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("what is taken: %v", err)
	}
	if err := stolen.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.AddRule(ctx, tcpPort(53)); err != nil {
		t.Errorf("what is free again: %v", err)
	}
	wantRules(t, "all", e.Rules(), web, ssh, dns)
	if err := e.Switch(Rings(dev)); err != nil {
		t.Fatal(err)
	}
	wantRules(t, "on the first device", infos(dev), web, dns, ssh)
	if n := len(matches(infos(next))); n != 0 {
		t.Errorf("the device before has %d rules", n)
	}
}

// TestRulesConcurrently adds, removes, lists and switches at once: what counts is the last.
func TestRulesConcurrently(t *testing.T) {
	nic, dev, e := hostWorld(t)
	other := openHostDevice(t, nic)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for i := range uint16(3) {
		running.Go(func() {
			for range 10 {
				if err := e.AddRule(ctx, tcpPort(100+i)); err != nil {
					t.Error(err)
				}
				e.Rules()
				if err := e.RemoveRule(tcpPort(100 + i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Go(func() {
		for range 5 {
			for _, to := range []Backend{None(), Rings(other), None(), Rings(dev)} {
				if err := e.Switch(to); err != nil {
					t.Error(err)
				}
			}
		}
	})
	running.Wait()
	wantRules(t, "at the end", e.Rules())
	cancel()
	e.rules.lock() // somebody's turn
	if err := e.AddRule(ctx, tcpPort(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	e.rules.unlock()
	if n := len(matches(infos(dev))) + len(matches(infos(other))); n != 0 {
		t.Errorf("%d rules are left", n)
	}
}

// Blocks returns the first ports of the blocks to try, in order.
func Blocks() (firsts []uint16) {
	for p := dv.FirstBlock; p < 1<<16; p += dv.BlockPorts {
		firsts = append(firsts, uint16(p))
	}
	return firsts
}
