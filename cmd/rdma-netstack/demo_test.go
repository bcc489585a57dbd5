package main

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/internal/probe"
	"github.com/rdma-netstack/rdma-netstack/simnic"
	"github.com/rdma-netstack/rdma-netstack/simnic/frame"
	"github.com/rdma-netstack/rdma-netstack/simnic/wire"
	"github.com/rdma-netstack/rdma-netstack/stack/admin"
	"github.com/rdma-netstack/rdma-netstack/tests/lib/need"
)

// wantChecks are names that other programs rely on.
var wantChecks = []string{"ping4", "ping6", "http", "http_bulk", "http_concurrent", "dns_udp",
	"dns_tcp", "netdev_http", "isolation"}

func TestDemoJSON(t *testing.T) {
	need.Long(t, "five demonstrations, 16 s")
	need.NetNS(t)
	for _, row := range []struct {
		name, flags string
		nobody      bool
	}{
		{"programs on TAP", "--links tap", false},
		{"Go clients on TAP, one queue", "--links tap --clients go --queues 1", false},
		{"programs on veth", "--links veth", false},
		{"ordinary user", "", true},
		{"bad wire", "--faults drop=1%,reorder=2%,dup=1%,seed=1", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if strings.Contains(row.flags, "tap") {
				need.TUN(t)
			}
			if row.nobody {
				need.UserNS(t)
			}
			s := &script{t: t, dir: t.TempDir(), nobody: row.nobody}
			if err := s.enter(); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"demo", "--json"}, strings.Fields(row.flags)...)
			if err := s.run(s.program(args)); err != nil {
				t.Fatal(err, s.stderr)
			}
			checkDemo(t, s)
			if err := gone(s.mark()); err != nil {
				t.Error(err)
			}
		})
	}
}

func checkDemo(t *testing.T, s *script) {
	t.Helper()
	var got demoReport
	d := json.NewDecoder(strings.NewReader(s.stdout))
	d.DisallowUnknownFields()
	if err := d.Decode(&got); err != nil {
		t.Fatalf("printed %q, %q: %v", s.stdout, s.stderr, err)
	}
	if d.More() {
		t.Errorf("more than one object: %q", s.stdout)
	}
	if !got.OK || s.code != exitDone {
		t.Errorf("ok is %v, exit code %d, error %q, stderr %q", got.OK, s.code, got.Error, s.stderr)
	}
	var names []string
	for _, c := range got.Checks {
		names = append(names, c.Name)
		if !c.OK {
			t.Errorf("%s failed: %s", c.Name, c.Detail)
		}
		t.Logf("%s: %s", c.Name, c.Detail)
	}
	for _, want := range wantChecks {
		if !slices.Contains(names, want) {
			t.Errorf("no check %s among %s", want, names)
		}
	}
	for _, owner := range []string{"slice", "netdev"} {
		if c := got.Counters[owner]; c.RxPackets == 0 || c.TxPackets == 0 ||
			c.RxBytes == 0 || c.TxBytes < 1<<20 {
			t.Errorf("counters of %s: %+v", owner, c)
		}
	}
}

// TestDemoNetdev: the status page of the demo counts what the netdev of the software NIC receives.
func TestDemoNetdev(t *testing.T) {
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	near, far := wire.Pair()
	netdev, linux := wire.Pair()
	ignore := func([]frame.Frame) {}
	if err := errors.Join(nic.ConnectWire(near), nic.ConnectNetdev(netdev), far.Start(ignore),
		linux.Start(ignore)); err != nil {
		t.Fatal(err)
	}
	frames := []frame.Frame{{Data: probe.EtherFrame(nic.MAC(), otherMAC, 0x0800,
		make([]byte, 100))}}
	if _, err := far.Send(frames); err != nil {
		t.Fatal(err)
	}
	want := admin.Traffic{Name: demoPort, RxPackets: 1, RxBytes: 114}
	if got := netdevTraffic(nic)(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
