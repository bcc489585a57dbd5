package packet

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/tests/lib/eth"
	"golang.org/x/sys/unix"
)

// TestGroups expects every group until some are named, then only those, and every group again when
// there are too many. The interface must list the groups that the NIC has to pass.
func TestGroups(t *testing.T) {
	w := newWorld(t)
	p := w.open(t, Config{})
	raw := w.rawSocket(t, 0)
	group := func(i int) net.HardwareAddr {
		return net.HardwareAddr{0x33, 0x33, 0, 1, byte(i >> 8), byte(i)}
	}
	many := make([]net.HardwareAddr, maxGroups+1)
	for i := range many {
		many[i] = group(i + 1)
	}
	for _, tt := range []struct {
		name   string
		groups []net.HardwareAddr // nil: not set
		want   []int
		listed int // of ours, by the interface
	}{
		{"not told", nil, []int{1, 2, 3, 500}, 0}, {"two", many[:2], []int{1, 2}, 2},
		{"others", many[1:3], []int{2, 3}, 2},
		{"the most", many[:maxGroups], []int{1, 2, 3}, maxGroups},
		{"too many", many, []int{1, 2, 3, 500}, 0}, {"none", many[:0], nil, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.groups != nil {
				must(t, p.SetGroups(tt.groups))
			}
			for _, i := range []int{1, 2, 3, 500} {
				must(t, unix.Send(raw, eth.Ethernet(group(i), peerMAC, 0x88b5, eth.Payload(60)), 0))
			}
			must(t, unix.Send(raw, eth.Ethernet(ourMAC, peerMAC, 0x88b5, eth.Payload(60)), 0))
			var got []int
			for last := false; !last; {
				for _, f := range receive(t, p.Rx(0), 1) {
					last = last || f.Data[0] == ourMAC[0]
					if f.Data[0] == 0x33 && f.Data[3] == 1 {
						got = append(got, int(binary.BigEndian.Uint16(f.Data[4:])))
					}
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("frames to %v came, want %v", got, tt.want)
			}
			if n := w.listed(t); n != tt.listed {
				t.Errorf("the interface lists %d of our groups, want %d", n, tt.listed)
			}
		})
	}
	want := "02:00:00:00:00:0a is no group's address: give one whose first byte is odd"
	if err := p.SetGroups([]net.HardwareAddr{ourMAC}); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	must(t, p.Close())
	must(t, p.SetGroups(many))
}

// listed counts the groups of TestGroups in our interface's list.
func (w *world) listed(t *testing.T) (n int) {
	t.Helper()
	must(t, w.ours.Do(func() error {
		list, err := os.ReadFile("/proc/thread-self/net/dev_mcast")
		n = strings.Count(string(list), " 33330001")
		return err
	}))
	return n
}
