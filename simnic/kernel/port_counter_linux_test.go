package kernel

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/rdma-netstack/rdma-netstack/dv/uverbs"
	"github.com/rdma-netstack/rdma-netstack/simnic"
)

// A node returns the counters that the RDMA device has in sysfs, until it is closed.
func TestPortCounter(t *testing.T) {
	nic, err := simnic.New(simnic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer nic.Close()
	node, err := Opener(nic)()
	if err != nil {
		t.Fatal(err)
	}
	counters := node.(uverbs.PortCounters)
	if n, err := counters.PortCounter(1, "out_of_buffer"); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	for _, c := range []struct {
		port uint8
		name string
	}{{1, "rx_packets_phy"}, {1, ""}, {2, "out_of_buffer"}} {
		if _, err := counters.PortCounter(c.port, c.name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q of port %d: %v", c.name, c.port, err)
		}
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := counters.PortCounter(1, "out_of_buffer"); err == nil {
		t.Error("a closed node tells a counter")
	}
}
